// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/lane.h"

#include <time.h>

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/group/worker_group.h"

namespace tutti {

Lane::Lane(WorkerGroup& group, std::vector<std::unique_ptr<Link>> links)
    : group_(group),
      links_(std::move(links)),
      posted_(links_.size()),
      popped_(links_.size()),
      seen_in_(links_.size()) {}

int Lane::rank() const { return group_.rank(); }
int Lane::size() const { return group_.size(); }

Deadline Lane::deadline(std::optional<std::chrono::milliseconds> timeout) const {
  const std::chrono::milliseconds delay = timeout.value_or(group_.options().timeout);
  // The time of the last tick, some milliseconds ago, costs a fifth of the exact time.
  timespec tick{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
  if (delay >= std::chrono::hours(24)) return Deadline::after(delay);
  return Deadline::at(Deadline::Clock::time_point(std::chrono::seconds(tick.tv_sec) +
                                                  std::chrono::nanoseconds(tick.tv_nsec) + delay));
}

Fingerprint Lane::begin(const Operation& operation) {
  group_.throw_if_aborted();
  if (busy_) {
    throw Error(ErrorCode::kFailedPrecondition,
                "Lane: an operation was begun while a previous one on the same lane is still "
                "under way. Wait for that one first.");
  }
  Operation described = operation;
  if (described.step == 0) described.step = group_.step();
  Fingerprint fingerprint = make_fingerprint(described, group_.options().epoch);
  fingerprint.number = operations_.fetch_add(1, std::memory_order_relaxed);
  log_.add(fingerprint);
  busy_ = true;
  return fingerprint;
}

void Lane::post(int rank, const Fingerprint& fingerprint, uint64_t tag, uint64_t total,
                Link::Pieces pieces, Link::Use use) {
  const auto peer = static_cast<size_t>(rank);
  uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  bytes_sent_.store(bytes_sent_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  links_[peer]->post({fingerprint.hash, posted_[peer]++, total, tag}, fingerprint, pieces, use);
}

const Incoming* Lane::peek(int rank, const Fingerprint& fingerprint) {
  const auto peer = static_cast<size_t>(rank);
  const Incoming* const incoming = links_[peer]->peek();
  if (incoming == nullptr) return nullptr;
  if (incoming->head.hash != fingerprint.hash || incoming->head.sequence != popped_[peer]) {
    throw_mismatch(rank, fingerprint, *incoming->fingerprint);
  }
  seen_in_[peer] = fingerprint.number + 1;
  return incoming;
}

void Lane::pop(int rank) {
  const auto peer = static_cast<size_t>(rank);
  Link& link = *links_[peer];
  if (link.shares_memory() && link.peek()->bytes.size() > Link::kCopiedBytes) {
    // A rank that gives up takes back the memory that it has lent: what was read may be garbage.
#if !defined(__SANITIZE_THREAD__)  // which does not support fences
    std::atomic_thread_fence(std::memory_order_acquire);
#endif
    if (link.failure(Link::Look::kReported)) group_.check();
  }
  ++popped_[peer];
  link.pop();
}

std::byte* Lane::scratch(size_t bytes) {
  if (!scratch_.defined() || scratch_.nbytes() < bytes) {
    scratch_ = group_.shared_->empty({static_cast<int64_t>(bytes)}, at::kByte);
  }
  return static_cast<std::byte*>(scratch_.data_ptr());
}

// A rank that is not missing may have left because it is done.
void Lane::check_alive(int missing, const Fingerprint& fingerprint) {
  group_.throw_if_aborted();
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const std::optional<PeerFailure> failure = link(r).failure(Link::Look::kDetected);
    if (!failure || (!failure->reported && r != missing)) continue;
    const std::string text =
        failure->reported ? failure->text
                          : message(group_.name(r), " is gone: ", failure->text, " Detected by ",
                                    group_.name(rank()), " during ",
                                    fingerprint.describe_with_step(), ". Start the job again.");
    group_.abort(failure->code, text);
    group_.throw_if_aborted();
  }
}

// The limit doubles so that a worker that is slower in every step does not fill the log.
void Lane::warn_if_long(int missing, const Fingerprint& fingerprint,
                        Deadline::Clock::time_point since) {
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(Deadline::Clock::now() - since);
  int64_t limit = group_.warning_.load(std::memory_order_relaxed);
  if (waited.count() < limit || !group_.warning_.compare_exchange_strong(limit, 2 * limit)) return;
  log(LogLevel::kWarning,
      message(group_.name(rank()), " has waited for ", static_cast<double>(limit) / 1e3, " s for ",
              group_.name(missing), " in ", fingerprint.describe_with_step(),
              ". It is slow or stuck, or is making different calls."));
}

void Lane::throw_mismatch(int rank, const Fingerprint& mine, const Fingerprint& theirs) {
  const bool same_call = mine.describe() == theirs.describe() && mine.step != theirs.step;
  const std::string text = message(
      "ranks disagree on the operation: ", group_.name(this->rank()), " is in ",
      mine.describe_with_step(), " (operation ", mine.number, " of its lane), but ",
      group_.name(rank), " is in ", theirs.describe_with_step(), " (operation ", theirs.number, ")",
      theirs.epoch != mine.epoch ? ". They do not belong to the same group" : "",
      ". Every worker must make the same calls in the same order, with equal types and shapes",
      same_call ? ": one has left out a call, or a whole run." : ".");
  // The codes are those within one process: one for a missing call, one for a different call.
  const bool is_missing = same_call || theirs.epoch != mine.epoch;
  group_.abort(is_missing ? ErrorCode::kFailedPrecondition : ErrorCode::kInvalidArgument, text);
  group_.throw_if_aborted();
  throw Error(ErrorCode::kInternal, text);
}

void Lane::throw_timeout(int rank, const Fingerprint& fingerprint) {
  const uint64_t seen = seen_in_[static_cast<size_t>(rank)];
  const std::string text =
      message(group_.name(rank), " did not join ", fingerprint.describe_with_step(), " (operation ",
              fingerprint.number, " of its lane) before the deadline, detected by ",
              group_.name(this->rank()), ". It was last seen in ",
              seen == 0 ? "no operation of this lane" : log_.describe(seen - 1),
              ". Either it is stuck, or it is making different calls.");
  if (group_.abort(ErrorCode::kUnavailable, text)) group_.log_operations();
  group_.throw_if_aborted();
  throw Error(ErrorCode::kInternal, text);
}

}  // namespace tutti
