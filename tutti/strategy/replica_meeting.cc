// SPDX-License-Identifier: Apache-2.0
//
// The meetings of ReplicaRunner.
//
// A meeting is one word, tally_: how many replicas have arrived at the current
// meeting point, have done their share of it, and have finished the current run.
//
//   arrive ──► arrived + finished < N     wait for signal_
//          ──► arrived == N               the last one completes the requests alone,
//                                         or opens the meeting: then each compares,
//                                         does its share and adds to `done`
//          ──► arrived + finished == N    a replica finished without arriving: error
//   finish ──► arrived + finished == N    the same, seen from the other side
//   done == N ──► the last replica empties the tally and signals the next meeting
//   throw  ──► poison: replicas that wait or arrive later leave with an error
//
// signal_ holds the number of the meeting and whether it is open, so that one
// write tells the waiting replicas all they need.
//
// Once all have arrived, no replica leaves before the end: the requests are on the
// stacks of the replicas. A poison that occurs in between takes effect afterwards.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/caller_state.h"
#include "tutti/strategy/internal/tally.h"
#include "tutti/strategy/replica_runner.h"

namespace tutti {

using namespace internal::tally;  // NOLINT(google-build-using-namespace): its few constants
using internal::CancelledByPeer;
using internal::seconds;
using internal::text_of;

namespace internal {

Mutex& shared_errors() {
  static Mutex mutex;
  return mutex;
}

std::string text_of(const std::exception_ptr& error) {
  const MutexLock lock(shared_errors());
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    // LibTorch appends a backtrace; the first line says what happened.
    const std::string_view text = e.what();
    return std::string(text.substr(0, text.find('\n')));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace internal

void ReplicaRunner::NameWords::store(std::string_view name) {
  if (name.empty() && words_[0].load(std::memory_order_relaxed) == 0) return;
  std::array<uint64_t, std::tuple_size_v<decltype(words_)>> words = {};
  if (!name.empty()) {
    std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof words));
  }
  for (size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_relaxed);
}

std::string ReplicaRunner::NameWords::load() const {
  std::array<char, sizeof words_> text = {};
  for (size_t i = 0; i < words_.size(); ++i) {
    const uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof word, &word, sizeof word);
  }
  const auto end = std::find(text.begin(), text.end(), '\0');
  return {text.begin(), end};
}

void ReplicaRunner::meet(int replica, MeetingRequest& request) {
  Replica& me = replicas_.at(static_cast<size_t>(replica));
  if (me.state.load(std::memory_order_relaxed) != State::kRunning ||
      me.in_meeting.exchange(true, std::memory_order_acquire)) {
    const bool running = me.state.load(std::memory_order_relaxed) != State::kIdle &&
                         me.state.load(std::memory_order_relaxed) != State::kFinished;
    throw Error(ErrorCode::kFailedPrecondition,
                message(who_, ": ", request.describe(), " on replica ",
                        me.context->replica_id_in_sync_group(),
                        running ? " while another thread of this replica is at a meeting point. "
                                  "Only one thread of a replica may call at a time."
                                : ", but its function is not running: the others would never "
                                  "arrive. Call it, or the backward pass that needs it, inside "
                                  "Strategy::run."));
  }
  struct Leave {
    Replica& me;
    ~Leave() {
      State waiting = State::kWaiting;
      me.state.compare_exchange_strong(waiting, State::kRunning, std::memory_order_relaxed);
      me.in_meeting.store(false, std::memory_order_release);
    }
  } const leave{me};
  me.last_file.store(request.site().file, std::memory_order_relaxed);
  me.last_line.store(request.site().line, std::memory_order_relaxed);
  me.last_call.store(request.name(), std::memory_order_relaxed);
  me.last_subject.store(request.subject());
  me.meetings.fetch_add(1, std::memory_order_relaxed);
  request.attach(notes_.data());
  MeetingNote& note = notes_[static_cast<size_t>(replica)];
  if (const MeetingNote wanted = request.note(); !(note == wanted)) note = wanted;
  me.state.store(State::kWaiting, std::memory_order_relaxed);

  const uint32_t seen = signal_.load();
  const uint32_t meeting = meeting_of(seen);
  const uint64_t tally = tally_.fetch_add(kArrived, std::memory_order_acq_rel) + kArrived;
  if ((tally & kPoisoned) != 0) {
    tally_.fetch_sub(kArrived, std::memory_order_relaxed);
    throw_poison();
  }
  if (arrived(tally) + finished(tally) < static_cast<uint64_t>(size())) {
    if (!wait_for_all(replica, seen, request)) {
      throw_if_failed(meeting);
      return;
    }
  } else if (finished(tally) > 0 || request.completer() != MeetingRequest::Completer::kAll) {
    complete_alone(replica, meeting, finished(tally) == 0);
    return;
  } else {
    release_permit();
    signal_.bump(kOpen);
  }
  complete_together(replica, meeting);
}

// Returns true when this replica has a share to do, without a permit: in a meeting all
// replicas run, since they may wait for each other. False when the meeting has ended. Reads the
// tally only after a signal: polling it would steal its cache line from replicas that are arriving.
bool ReplicaRunner::wait_for_all(int replica, uint32_t seen, const MeetingRequest& request) {
  const uint32_t meeting = meeting_of(seen);
  release_permit();
  struct Reacquire {
    ReplicaRunner* runner;
    bool has_share = false;
    ~Reacquire() {
      if (!has_share) runner->acquire_permit();
    }
  } reacquire{this};
  const std::chrono::milliseconds limit = request.timeout().value_or(options_.meeting_timeout);
  std::optional<Deadline> warning;
  std::optional<Deadline> deadline;
  while (true) {
    if (!signal_.poll(seen, wait_mode())) {
      if (!deadline) {
        deadline = Deadline::after(limit);
        warning = Deadline::after(options_.meeting_warning);
      }
      if (!signal_.park(seen, warning->when() < deadline->when() ? *warning : *deadline)) {
        if (deadline->passed()) {
          on_deadline(replica, request, limit);
          deadline = Deadline::forever();
        } else if (warning->passed()) {
          warning = Deadline::forever();
          log(LogLevel::kWarning,
              message(who_, ": ", request.name(), " has waited for ",
                      seconds(options_.meeting_warning), " s; ", where_replicas_are(), "."));
        }
        continue;
      }
    }
    seen = signal_.load();
    if (meeting_of(seen) != meeting) return false;
    if ((seen & kOpen) != 0) {
      reacquire.has_share = true;
      return true;
    }
    if ((tally_.load(std::memory_order_acquire) & kPoisoned) != 0) throw_poison();
  }
}

// The error of the other replicas when one fails for all. Must not throw: they are waiting.
std::exception_ptr ReplicaRunner::released_error(const char* what, int replica,
                                                 const std::exception_ptr& error) const noexcept {
  try {
    const int id = replicas_[static_cast<size_t>(replica)].context->replica_id_in_sync_group();
    return std::make_exception_ptr(CancelledByPeer(message(
        who_, ": released because ", what, " failed on replica ", id, ": ", text_of(error))));
  } catch (...) {
    return error;
  }
}

// The last replica to arrive does the work for all.
void ReplicaRunner::complete_alone(int replica, uint32_t meeting, bool all_came) {
  const std::exception_ptr error = compare_and_complete(replica, meeting, all_came);
  close_meeting(meeting, /*opened=*/false);
  if (error != nullptr) std::rethrow_exception(error);
}

// Returns the error of this replica, or null; records the error for the others.
std::exception_ptr ReplicaRunner::compare_and_complete(int replica, uint32_t meeting,
                                                       bool all_came) {
  std::exception_ptr error;
  try {
    if (!all_came) throw count_error();
    const Requests requests = collect_requests(replica);
    if (requests.empty()) throw mismatch_error();
    error = call_complete(replica, requests);
    if (error != nullptr) {
      fail_meeting(meeting, released_error(requests[0]->name(), replica, error));
    }
  } catch (...) {
    error = std::current_exception();  // the requests differ: an error of every replica
    fail_meeting(meeting, error);
  }
  return error;
}

std::exception_ptr ReplicaRunner::call_complete(int replica, const Requests& requests) {
  try {
    const internal::FrameScope cross(&services_, nullptr);
    const std::span<MeetingRequest* const> all(requests.data(), requests.size());
    if (requests[0]->completer() != MeetingRequest::Completer::kFirst) {
      requests[static_cast<size_t>(replica)]->complete(all);
      return nullptr;
    }
    // The last replica to arrive is arbitrary; the state that a merge function sees must not be.
    const internal::CallerState::Scope caller(*caller_);
    const DeviceScope device(replicas_[0].context->device());
    std::optional<ReplicaRandom::Scope> random;
    if (replicas_[0].random) random.emplace(*replicas_[0].random);
    requests[0]->complete(all);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// Every replica does its share, then waits for the others and for a permit.
void ReplicaRunner::complete_together(int replica, uint32_t meeting) {
  const std::exception_ptr error = compare_and_complete(replica, meeting, /*all_came=*/true);
  const uint32_t seen = signal_.load();
  const uint64_t tally = tally_.fetch_add(kDone, std::memory_order_acq_rel) + kDone;
  if (done(tally) == static_cast<uint64_t>(size())) {
    close_meeting(meeting, /*opened=*/true);
  } else {
    wait_for_end(seen);
  }
  acquire_permit();
  if (error != nullptr) std::rethrow_exception(error);
  throw_if_failed(meeting);
}

void ReplicaRunner::wait_for_end(uint32_t seen) {
  const uint32_t meeting = meeting_of(seen);
  std::optional<Deadline> warning;
  while (meeting_of(seen) == meeting) {
    // Waits without a limit: the others are inside our own code, working on our memory.
    if (!signal_.poll(seen, wait_mode())) {
      if (!warning) warning = Deadline::after(options_.meeting_warning);
      if (!signal_.park(seen, *warning)) {
        warning = Deadline::forever();
        log(LogLevel::kWarning,
            message(who_, ": a collective operation has taken more than ",
                    seconds(options_.meeting_warning), " s; ", where_replicas_are(), "."));
      }
    }
    seen = signal_.load();
  }
}

// Empties the tally for the next meeting and releases the replicas that wait for the end.
void ReplicaRunner::close_meeting(uint32_t meeting, bool opened) {
  const bool failed = failed_meeting_.load(std::memory_order_relaxed) == meeting;
  uint64_t tally = tally_.load(std::memory_order_relaxed);
  while (true) {
    const bool poisoned = failed || (tally & (kPoisoned | kPoisonPending)) != 0;
    const uint64_t next = (tally & (kCountMask * kFinished)) | (poisoned ? kPoisoned : 0);
    if (tally_.compare_exchange_weak(tally, next, std::memory_order_acq_rel)) break;
  }
  signal_.bump(opened ? kMeeting - kOpen : kMeeting);
}

// Called before the replica that saw the error counts as done, so that the replica that
// closes the meeting sees the failure.
void ReplicaRunner::fail_meeting(uint32_t meeting, std::exception_ptr error_of_others) {
  const MutexLock lock(poison_mutex_);
  if (failed_meeting_.load(std::memory_order_relaxed) == meeting) return;
  poison_error_ = std::move(error_of_others);
  failed_meeting_.store(meeting, std::memory_order_relaxed);
}

void ReplicaRunner::throw_if_failed(uint32_t meeting) {
  if (failed_meeting_.load(std::memory_order_relaxed) == meeting) throw_poison();
}

// Returns the requests of all replicas, or nothing when they disagree with that of `replica`.
// The result is the same on every replica.
ReplicaRunner::Requests ReplicaRunner::collect_requests(int replica) const {
  const MeetingNote& mine = notes_[static_cast<size_t>(replica)];
  Requests requests;
  for (const MeetingNote& each : notes_) {
    if (each.fingerprint != mine.fingerprint ||
        (each.type != mine.type && !(*each.type == *mine.type))) {
      return {};
    }
    requests.push_back(each.request);
  }
  return requests;
}

void ReplicaRunner::on_deadline(int replica, const MeetingRequest& request,
                                std::chrono::milliseconds limit) {
  const int id = replicas_[static_cast<size_t>(replica)].context->replica_id_in_sync_group();
  const Error error(ErrorCode::kDeadlineExceeded,
                    message(who_, ": replica ", id, " waited ", seconds(limit), " s in ",
                            request.describe(), "; ", where_replicas_are(),
                            ". If the work between two meeting points may take longer, raise "
                            "meeting_timeout or CommunicationOptions::timeout."));
  poison(std::make_exception_ptr(error), /*only_while_waiting=*/true);
}

Error ReplicaRunner::mismatch_error() const {
  std::vector<std::string> calls;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const MeetingRequest& request = *notes_[i].request;
    const CallSite site = request.site();
    calls.push_back(message("replica ", replicas_[i].context->replica_id_in_sync_group(),
                            " called ", request.describe(),
                            site.line == 0 ? "" : message(" (", site, ")")));
  }
  return {ErrorCode::kInvalidArgument,
          message(who_, ": replicas asked for different things at meeting point ",
                  replicas_[0].meetings.load(std::memory_order_relaxed),
                  " of this run: ", joined(calls, "; "),
                  ". Every replica must make the same calls in the same order, with equal types "
                  "and shapes (all_gather accepts different sizes along its axis).")};
}

Error ReplicaRunner::count_error() const {
  return {ErrorCode::kFailedPrecondition,
          message(who_, "::run: replicas made different numbers of calls: ", where_replicas_are(),
                  ". Every replica must make the same merge_call, all_reduce and all_gather calls, "
                  "and make and write the same variables, in the same order.")};
}

// Returns false if it has no effect: the run was already poisoned, or the wait in
// question has just ended.
bool ReplicaRunner::poison(std::exception_ptr error, bool only_while_waiting) {
  {
    const MutexLock lock(poison_mutex_);
    uint64_t tally = tally_.load(std::memory_order_relaxed);
    while (true) {
      if ((tally & (kPoisoned | kPoisonPending)) != 0) return false;
      const bool in_completion =
          arrived(tally) == static_cast<uint64_t>(size()) && finished(tally) == 0;
      if (in_completion && only_while_waiting) return false;
      poison_error_ = error;
      const uint64_t bit = in_completion ? kPoisonPending : kPoisoned;
      if (tally_.compare_exchange_weak(tally, tally | bit, std::memory_order_acq_rel)) break;
    }
  }
  signal_.flip(kPoisonHint);
  return true;
}

void ReplicaRunner::throw_poison() {
  std::exception_ptr error;
  {
    const MutexLock lock(poison_mutex_);
    error = poison_error_;
  }
  std::rethrow_exception(error);
}

std::string ReplicaRunner::where_replicas_are() const {
  return joined(replicas_, ", ", [](const Replica& each) {
    const char* call = each.last_call.load(std::memory_order_relaxed);
    const int meetings = each.meetings.load(std::memory_order_relaxed);
    const CallSite site{each.last_file.load(std::memory_order_relaxed),
                        each.last_line.load(std::memory_order_relaxed)};
    const std::string subject = each.last_subject.load();
    const std::string where =
        call == nullptr
            ? std::string("no meeting point yet")
            : message(call, subject.empty() ? "" : " of '" + subject + "'", ", meeting point ",
                      meetings, site.line == 0 ? "" : message(" at ", site));
    const std::string who = message("replica ", each.context->replica_id_in_sync_group());
    switch (each.state.load(std::memory_order_relaxed)) {
      case State::kWaiting:
        return message(who, " waits in ", where);
      case State::kRunning:
        return message(who, " is computing (last: ", where, ")");
      case State::kFinished:
        return message(who, " has finished (last: ", where, ")");
      case State::kIdle:
        break;
    }
    return who + " is idle";
  });
}

}  // namespace tutti
