// SPDX-License-Identifier: Apache-2.0

#include "tests/support/nccl_standin/nccl_standin.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace {

using tutti::test::nccl_standin::Call;
using Bytes = std::vector<char>;

enum Result {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

constexpr auto kMaxWait = std::chrono::seconds(20);

struct World;

struct Communicator {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  bool ended = false;  // destroyed or aborted
  size_t position = 0;
};

// The communicators of one ncclCommInitAll.
struct World {
  int size = 0;
  std::map<std::pair<int, int>, std::deque<Bytes>> mail;  // by sender and receiver
  std::vector<std::string> operations;                    // what happens at each position
  std::map<size_t, std::map<int, Bytes>> gathers;         // by position and rank
};

struct Operation {
  enum Kind { kSend, kReceive, kGather } kind;
  Communicator* communicator;
  const void* source;
  void* target;
  size_t bytes;
  int peer;
  bool done = false;
};

struct Fault {
  std::string function;
  int rank;
  int countdown;
  int result;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Call> calls;
  std::vector<std::string> violations;
  std::vector<Fault> faults;
  std::map<int, int> async_errors;
  std::set<int> hanging;
  // Never freed, so that a use after the end is detected and does not crash.
  std::deque<Communicator> communicators;
};

State& state() {
  static auto* const the_state = new State;
  return *the_state;
}

struct ThreadGroup {
  int depth = 0;
  int error = kSuccess;
  std::vector<Operation> operations;
};
thread_local ThreadGroup group;

using Lock = std::unique_lock<std::mutex>;

int violate(const std::string& text) {
  state().violations.push_back(text);
  return kInvalidUsage;
}

int injected(const std::string& function, int rank) {
  auto& faults = state().faults;
  for (auto fault = faults.begin(); fault != faults.end(); ++fault) {
    if (fault->function != function || fault->rank != rank || --fault->countdown > 0) continue;
    const int result = fault->result;
    faults.erase(fault);
    return result;
  }
  return kSuccess;
}

int note(const char* function, Communicator* communicator, int peer = -1, size_t bytes = 0,
         const void* stream = nullptr) {
  const int rank = communicator == nullptr ? -1 : communicator->rank;
  const int device = communicator == nullptr ? -1 : communicator->device;
  state().calls.push_back({function, rank, peer, bytes, stream, device});
  return injected(function, rank);
}

// One kind of operation at one position of all ranks.
int check_position(Communicator& communicator, const std::string& operation) {
  auto& operations = communicator.world->operations;
  const size_t position = communicator.position++;
  if (operations.size() <= position) operations.resize(position + 1);
  if (operations[position].empty()) operations[position] = operation;
  if (operations[position] == operation) return kSuccess;
  return violate("rank " + std::to_string(communicator.rank) + " does " + operation +
                 " where another does " + operations[position]);
}

int try_receive(Operation& each) {
  auto& mail = each.communicator->world->mail[{each.peer, each.communicator->rank}];
  if (mail.empty()) return kSuccess;
  const Bytes data = std::move(mail.front());
  mail.pop_front();
  each.done = true;
  if (data.size() != each.bytes) {
    return violate("rank " + std::to_string(each.communicator->rank) + " receives " +
                   std::to_string(each.bytes) + " bytes, but " + std::to_string(data.size()) +
                   " were sent");
  }
  if (!data.empty()) std::memcpy(each.target, data.data(), data.size());
  return kSuccess;
}

void try_gather(Operation& each) {
  World& world = *each.communicator->world;
  const auto& parts = world.gathers[each.communicator->position - 1];
  if (static_cast<int>(parts.size()) < world.size) return;
  for (const auto& [rank, data] : parts) {
    char* target = static_cast<char*>(each.target) + static_cast<size_t>(rank) * each.bytes;
    if (!data.empty()) std::memcpy(target, data.data(), data.size());
  }
  each.done = true;
}

// Copies the bytes that are sent, so that a sender does not wait for a receiver.
int post(std::vector<Operation>& operations) {
  std::map<Communicator*, std::string> kinds;
  for (const Operation& each : operations) {
    std::string& kind = kinds[each.communicator];
    const bool gather = each.kind == Operation::kGather;
    if (gather && !kind.empty()) return violate("two operations of a rank in one group");
    kind = gather ? "all-gather of " + std::to_string(each.bytes) : "send and receive";
  }
  for (const auto& [communicator, kind] : kinds) {
    if (const int result = check_position(*communicator, kind)) return result;
  }
  for (Operation& each : operations) {
    const auto* data = static_cast<const char*>(each.source);
    World& world = *each.communicator->world;
    const int rank = each.communicator->rank;
    if (each.kind == Operation::kSend) {
      world.mail[{rank, each.peer}].emplace_back(data, data + each.bytes);
      each.done = true;
    } else if (each.kind == Operation::kGather) {
      world.gathers[each.communicator->position - 1][rank] = Bytes(data, data + each.bytes);
    }
  }
  return kSuccess;
}

int execute(Lock& lock, std::vector<Operation> operations) {
  State& all = state();
  const auto aborted = [&] {
    return std::any_of(operations.begin(), operations.end(),
                       [](const Operation& each) { return each.communicator->ended; });
  };
  for (const Operation& each : operations) {
    if (all.hanging.erase(each.communicator->rank) == 0) continue;
    all.changed.wait_for(lock, kMaxWait, aborted);
    return kRemoteError;
  }
  if (const int result = post(operations)) return result;
  all.changed.notify_all();
  const auto deadline = std::chrono::steady_clock::now() + kMaxWait;
  for (;;) {
    if (aborted()) return kRemoteError;
    bool done = true;
    for (Operation& each : operations) {
      if (each.done) continue;
      if (each.kind == Operation::kGather) {
        try_gather(each);
      } else if (const int result = try_receive(each)) {
        return result;
      }
      done = done && each.done;
    }
    if (done) return kSuccess;
    if (all.changed.wait_until(lock, deadline) == std::cv_status::timeout) {
      violate("rank " + std::to_string(operations[0].communicator->rank) +
              " has waited too long for its peers");
      return kSystemError;
    }
  }
}

int submit(const char* function, Operation operation, int type, const void* stream) {
  Lock lock(state().mutex);
  Communicator* const communicator = operation.communicator;
  int result = note(function, communicator, operation.peer, operation.bytes, stream);
  const bool has_peer = operation.kind != Operation::kGather;
  if (result != kSuccess) {
    // injected
  } else if (communicator->ended) {
    result = violate(std::string(function) + " after the end of the communicator");
  } else if (type != 0) {
    result = violate("only bytes are moved here");
  } else if (has_peer && (operation.peer < 0 || operation.peer >= communicator->world->size)) {
    violate("the peer " + std::to_string(operation.peer) + " is out of range");
    result = kInvalidArgument;
  } else if (has_peer && group.depth == 0) {
    result = violate(std::string(function) + " outside of a group would wait for its peer");
  }
  if (group.depth == 0) return result != kSuccess ? result : execute(lock, {operation});
  if (result != kSuccess) group.error = result;
  group.operations.push_back(operation);
  return result;
}

// An abort frees the threads that are inside a call of this communicator, and no others.
int end_communicator(const char* function, Communicator* communicator) {
  Lock lock(state().mutex);
  const int result = note(function, communicator);
  if (communicator->ended) return violate(std::string(function) + " of an ended communicator");
  communicator->ended = true;
  state().changed.notify_all();
  return result;
}

}  // namespace

// NCCL's names and signatures, with int for its enumerations.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming)

const char* ncclGetErrorString(int result) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error"};
  return result >= 0 && result < 7 ? texts[result] : "unknown result code";
}

const char* ncclGetLastError(Communicator*) { return "a word from the stand-in"; }

int ncclCommInitAll(Communicator** communicators, int count, const int* devices) {
  Lock lock(state().mutex);
  if (const int result = note("ncclCommInitAll", nullptr, -1, static_cast<size_t>(count))) {
    return result;
  }
  if (group.depth > 0) return violate("ncclCommInitAll inside of a group");
  const auto world = std::make_shared<World>();
  world->size = count;
  for (int rank = 0; rank < count; ++rank) {
    state().communicators.push_back({world, rank, devices[rank]});
    communicators[rank] = &state().communicators.back();
  }
  return kSuccess;
}

int ncclCommDestroy(Communicator* communicator) {
  return end_communicator("ncclCommDestroy", communicator);
}

int ncclCommAbort(Communicator* communicator) {
  return end_communicator("ncclCommAbort", communicator);
}

int ncclCommGetAsyncError(Communicator* communicator, int* async_error) {
  Lock lock(state().mutex);
  if (communicator->ended) return violate("ncclCommGetAsyncError of an ended communicator");
  const auto found = state().async_errors.find(communicator->rank);
  *async_error = found == state().async_errors.end() ? kSuccess : found->second;
  if (found != state().async_errors.end()) state().async_errors.erase(found);
  return injected("ncclCommGetAsyncError", communicator->rank);
}

int ncclGroupStart() {
  Lock lock(state().mutex);
  const int result = note("ncclGroupStart", nullptr);
  if (result == kSuccess) ++group.depth;
  return result;
}

int ncclGroupEnd() {
  Lock lock(state().mutex);
  const int result = note("ncclGroupEnd", nullptr);
  if (group.depth == 0) return violate("ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return result;
  const int error = result != kSuccess ? result : group.error;
  std::vector<Operation> operations = std::exchange(group.operations, {});
  group.error = kSuccess;
  return error != kSuccess ? error : execute(lock, std::move(operations));
}

int ncclSend(const void* data, size_t count, int type, int peer, Communicator* communicator,
             void* stream) {
  return submit("ncclSend", {Operation::kSend, communicator, data, nullptr, count, peer}, type,
                stream);
}

int ncclRecv(void* data, size_t count, int type, int peer, Communicator* communicator,
             void* stream) {
  return submit("ncclRecv", {Operation::kReceive, communicator, nullptr, data, count, peer}, type,
                stream);
}

int ncclAllGather(const void* data, void* all, size_t count, int type, Communicator* communicator,
                  void* stream) {
  return submit("ncclAllGather", {Operation::kGather, communicator, data, all, count, -1}, type,
                stream);
}

// NOLINTEND(readability-identifier-naming)
}

namespace tutti::test::nccl_standin {

std::vector<Call> calls() {
  Lock lock(state().mutex);
  return state().calls;
}

void forget_calls() {
  Lock lock(state().mutex);
  state().calls.clear();
}

std::vector<std::string> violations() {
  Lock lock(state().mutex);
  return state().violations;
}

void fail_call(const std::string& function, int rank, int k, int result) {
  Lock lock(state().mutex);
  state().faults.push_back({function, rank, k, result});
}

void set_async_error(int rank, int result) {
  Lock lock(state().mutex);
  state().async_errors[rank] = result;
}

void hang_group(int rank) {
  Lock lock(state().mutex);
  state().hanging.insert(rank);
}

int live_communicators() {
  Lock lock(state().mutex);
  const auto& all = state().communicators;
  return static_cast<int>(
      std::count_if(all.begin(), all.end(), [](const Communicator& each) { return !each.ended; }));
}

}  // namespace tutti::test::nccl_standin
