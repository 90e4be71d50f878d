// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/communicator.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tutti/base/log.h"

namespace tutti {
namespace {

using Clock = Deadline::Clock;

constexpr int kYields = 50;
constexpr int kPauses = 64;  // between two looks at the clock
// How long a sleep lasts before the other ranks are looked at: they may have given up, or have made
// room for a message. Sleeps grow longer.
constexpr std::chrono::microseconds kFirstSlice{250};
constexpr std::chrono::microseconds kLastSlice{5000};
// A peer that reads takes what is under way in no time; others are not waited for.
constexpr std::chrono::milliseconds kPatience{500};
constexpr int kNobody = -1;
constexpr std::array<const char*, kGroupChannels> kChannelNames = {"collectives", "gradients",
                                                                   "flags", "input"};
constexpr uint32_t kAdvancesBetweenLooks = 64;

class ArmedLink {
 public:
  explicit ArmedLink(Link& link) : link_(link), armed_(link.arm()) {}
  ~ArmedLink() { link_.disarm(); }
  ArmedLink(const ArmedLink&) = delete;
  ArmedLink& operator=(const ArmedLink&) = delete;

  void park(const Deadline& until) const { link_.park(armed_, until); }

 private:
  Link& link_;
  const uint32_t armed_;
};

}  // namespace

// ---- WorkerGroup

WorkerGroup::WorkerGroup(Options options, Links links, std::shared_ptr<Arena> shared,
                         std::shared_ptr<void> keep)
    : options_(std::move(options)),
      keep_(std::move(keep)),
      shared_(std::move(shared)),
      arena_(shared_ != nullptr ? shared_ : std::make_shared<HeapArena>()),
      warning_(options_.warning.count()) {
  TUTTI_CHECK(links.size() == kGroupChannels);
  for (auto& each : links) {
    TUTTI_CHECK(each.size() == options_.names.size());
    channels_.push_back(std::make_unique<Communicator>(*this, std::move(each)));
  }
}

WorkerGroup::~WorkerGroup() = default;

// Whoever knows that the group has ended may use memory again that others read; so these are told
// first.
bool WorkerGroup::abort(ErrorCode code, const std::string& text) {
  {
    const MutexLock telling(telling_);
    {
      const MutexLock lock(mutex_);
      if (error_ != nullptr) return false;
      error_ = std::make_exception_ptr(Error(code, text));
    }
    Communicator& first = *channels_[0];
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) first.link(r).abort(code, text);
    }
    aborted_.store(true, std::memory_order_release);
  }
  if (code == ErrorCode::kFailedPrecondition || code == ErrorCode::kInvalidArgument) {
    log_operations();
  }
  return true;
}

void WorkerGroup::log_operations() const {
  std::string text;
  for (size_t c = 0; c < channels_.size(); ++c) {
    const std::string operations = channels_[c]->log_.describe();
    if (!operations.empty()) text += message("\n", kChannelNames[c], ":\n", operations);
  }
  log(LogLevel::kError, message("the last operations of ", name(rank()), ", by channel:", text));
}

void WorkerGroup::throw_if_aborted() {
  if (!aborted_.load(std::memory_order_acquire)) return;
  std::exception_ptr error;
  {
    const MutexLock lock(mutex_);
    error = error_;
  }
  std::rethrow_exception(error);
}

void WorkerGroup::check() {
  throw_if_aborted();
  Communicator& first = *channels_[0];
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::optional<PeerFailure> failure = first.link(r).reported_failure();
    if (failure) abort(failure->code, failure->text);
  }
  throw_if_aborted();
}

// ---- Transfer

Transfer::Transfer(Communicator& communicator, const Operation& operation, Deadline deadline)
    : communicator_(communicator),
      fingerprint_(communicator.begin(operation)),
      deadline_(deadline) {}

Transfer::~Transfer() {
  if (done_) return;
  communicator_.end();
  communicator_.group().abort(ErrorCode::kCancelled,
                              message(communicator_.group().name(communicator_.rank()), " left ",
                                      fingerprint_.describe_with_step(), " before it was done."));
  const Deadline patience = Deadline::after(kPatience);
  for (int r = 0; r < communicator_.size(); ++r) {
    if (r != communicator_.rank()) communicator_.link(r).discard(patience);
  }
}

// Other ranks shall hear why.
void Transfer::give_up(const std::exception_ptr& why) {
  WorkerGroup& group = communicator_.group();
  const auto abort = [&](ErrorCode code, const char* text) {
    group.abort(code, message(group.name(communicator_.rank()), " failed in ",
                              fingerprint_.describe_with_step(), ": ", text));
  };
  try {
    std::rethrow_exception(why);
  } catch (const Error& error) {
    abort(error.code(), error.what());
  } catch (const std::exception& error) {
    abort(ErrorCode::kCancelled, error.what());
  } catch (...) {
    abort(ErrorCode::kCancelled, "an unknown error.");
  }
}

bool Transfer::poll(int* missing) {
  try {
    *missing = step();
  } catch (...) {
    give_up(std::current_exception());
    throw;
  }
  if (*missing != kDone) return false;
  done_ = true;
  communicator_.end();
  return true;
}

// A rank may have done its part and left since it was looked at, so whoever is gone is looked at
// once more: all that it did is visible now.
bool Transfer::poll_or_throw(int* missing) {
  const int before = *missing;
  bool gone = communicator_.link(before).failure().has_value();
  if (gone) {
    if (poll(missing)) return true;
    gone = *missing == before;
  }
  communicator_.check_alive(gone ? before : kNobody, fingerprint_);
  if (deadline_.passed()) communicator_.throw_timeout(*missing, fingerprint_);
  return false;
}

// Asking whether peers are alive is a system call: not in every hook of backward.
bool Transfer::advance() {
  int missing = 0;
  if (done_ || poll(&missing)) return true;
  return ++advances_ % kAdvancesBetweenLooks == 0 && poll_or_throw(&missing);
}

bool Transfer::wait_until(const Deadline& until) {
  if (done_) return true;
  const bool spin = communicator_.group().options().wait_mode == WaitMode::kSpin;
  int missing = 0;
  Spin spinning;
  for (int round = 0;; ++round) {
    if (poll(&missing)) return true;
    if (!spin && round < kYields) {
      sched_yield();
    } else if (spin && (round % kPauses != kPauses - 1 || spinning.goes_on())) {
      if (round >= kPauses) pause_briefly();
    } else {
      break;
    }
  }
  if (!waits_since_) waits_since_ = Clock::now();
  for (auto slice = kFirstSlice;; slice = std::min(2 * slice, kLastSlice)) {
    if (poll_or_throw(&missing)) return true;
    if (until.passed()) return false;
    communicator_.warn_if_long(missing, fingerprint_, *waits_since_);
    bool done = false;
    {
      const ArmedLink link(communicator_.link(missing));
      int now_missing = 0;
      done = poll(&now_missing);
      if (!done && now_missing == missing) {
        link.park(Deadline::at(std::min({deadline_.when(), until.when(), Clock::now() + slice})));
      }
    }
    if (done || poll(&missing)) return true;
  }
}

// ---- Communicator

Communicator::Communicator(WorkerGroup& group, std::vector<std::unique_ptr<Link>> links)
    : group_(group),
      links_(std::move(links)),
      posted_(links_.size()),
      popped_(links_.size()),
      seen_in_(links_.size()) {}

Deadline Communicator::deadline(std::optional<std::chrono::milliseconds> timeout) const {
  const std::chrono::milliseconds delay = timeout.value_or(group_.options().timeout);
  // The time of the last tick, some milliseconds ago, is a fifth as expensive as the time.
  timespec tick{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
  if (delay >= std::chrono::hours(24)) return Deadline::after(delay);
  return Deadline::at(Clock::time_point(std::chrono::seconds(tick.tv_sec) +
                                        std::chrono::nanoseconds(tick.tv_nsec) + delay));
}

Fingerprint Communicator::begin(const Operation& operation) {
  group_.throw_if_aborted();
  if (busy_) {
    throw Error(ErrorCode::kFailedPrecondition,
                "Communicator: an operation was begun while another one of the same channel is not "
                "done. Wait for it first.");
  }
  Operation described = operation;
  if (described.step == 0) described.step = group_.step();
  Fingerprint fingerprint = make_fingerprint(described, group_.options().epoch);
  fingerprint.number = operations_.fetch_add(1, std::memory_order_relaxed);
  log_.add(fingerprint);
  busy_ = true;
  return fingerprint;
}

void Communicator::post(int rank, const Fingerprint& fingerprint, uint64_t tag, uint64_t total,
                        Link::Pieces pieces, Link::Use use) {
  const auto peer = static_cast<size_t>(rank);
  uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  bytes_sent_.store(bytes_sent_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  links_[peer]->post({fingerprint.hash, posted_[peer]++, total, tag}, fingerprint, pieces, use);
}

const Incoming* Communicator::peek(int rank, const Fingerprint& fingerprint) {
  const auto peer = static_cast<size_t>(rank);
  const Incoming* const incoming = links_[peer]->peek();
  if (incoming == nullptr) return nullptr;
  if (incoming->head.hash != fingerprint.hash || incoming->head.sequence != popped_[peer]) {
    throw_mismatch(rank, fingerprint, *incoming->fingerprint);
  }
  seen_in_[peer] = fingerprint.number + 1;
  return incoming;
}

void Communicator::pop(int rank) {
  const auto peer = static_cast<size_t>(rank);
  Link& link = *links_[peer];
  if (link.shares_memory() && link.peek()->bytes.size() > Link::kCopiedBytes) {
    // A rank that gives up takes back the memory that it has lent: what was read may be anything.
#if !defined(__SANITIZE_THREAD__)  // which knows no fences
    std::atomic_thread_fence(std::memory_order_acquire);
#endif
    if (link.reported_failure()) group_.check();
  }
  ++popped_[peer];
  link.pop();
}

std::byte* Communicator::scratch(size_t bytes) {
  if (!scratch_.defined() || scratch_.nbytes() < bytes) {
    scratch_ = group_.shared_->empty({static_cast<int64_t>(bytes)}, at::kByte);
  }
  return static_cast<std::byte*>(scratch_.data_ptr());
}

// A rank that is not missing may have left because it is done.
void Communicator::check_alive(int missing, const Fingerprint& fingerprint) {
  group_.throw_if_aborted();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::optional<PeerFailure> failure = link(r).failure();
    if (!failure || (!failure->reported && r != missing)) continue;
    const std::string text =
        failure->reported ? failure->text
                          : message(group_.name(r), " is gone: ", failure->text,
                                    " This was noticed during ", fingerprint.describe_with_step(),
                                    " by ", group_.name(rank()), ". Start the job again.");
    group_.abort(failure->code, text);
    group_.throw_if_aborted();
  }
}

// A worker that is slower in every step shall not fill the log.
void Communicator::warn_if_long(int missing, const Fingerprint& fingerprint,
                                Clock::time_point since) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since);
  int64_t limit = group_.warning_.load(std::memory_order_relaxed);
  if (waited.count() < limit || !group_.warning_.compare_exchange_strong(limit, 2 * limit)) return;
  log(LogLevel::kWarning,
      message(group_.name(rank()), " has waited for ", static_cast<double>(limit) / 1e3, " s for ",
              group_.name(missing), " in ", fingerprint.describe_with_step(),
              ". It is slow or stuck, or makes other calls than this one."));
}

void Communicator::throw_mismatch(int rank, const Fingerprint& mine, const Fingerprint& theirs) {
  const bool same_call = mine.describe() == theirs.describe() && mine.step != theirs.step;
  const std::string text = message(
      "ranks do not do the same: ", group_.name(this->rank()), " does ", mine.describe_with_step(),
      " (operation ", mine.number, " of its channel), but ", group_.name(rank), " does ",
      theirs.describe_with_step(), " (operation ", theirs.number, ")",
      theirs.epoch != mine.epoch ? ". They do not belong to the same group" : "",
      ". Every worker must make the same calls in the same order, with equal types and shapes",
      same_call ? ": one has left out a call, or a whole run." : ".");
  // As in one process: a call that is missing, or one that differs.
  const bool is_missing = same_call || theirs.epoch != mine.epoch;
  group_.abort(is_missing ? ErrorCode::kFailedPrecondition : ErrorCode::kInvalidArgument, text);
  group_.throw_if_aborted();
  throw Error(ErrorCode::kInternal, text);
}

void Communicator::throw_timeout(int rank, const Fingerprint& fingerprint) {
  const uint64_t seen = seen_in_[static_cast<size_t>(rank)];
  const std::string text = message(
      group_.name(rank), " did not come to ", fingerprint.describe_with_step(), " (operation ",
      fingerprint.number, " of its channel) before the deadline, noticed by ",
      group_.name(this->rank()), ". It was last seen in ",
      seen == 0 ? "no operation of this channel" : log_.describe(seen - 1),
      ". Either it is stuck, or it makes other calls than this one.");
  if (group_.abort(ErrorCode::kUnavailable, text)) group_.log_operations();
  group_.throw_if_aborted();
  throw Error(ErrorCode::kInternal, text);
}

}  // namespace tutti
