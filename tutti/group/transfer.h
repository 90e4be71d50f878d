// SPDX-License-Identifier: Apache-2.0
//
// An operation under way on a lane. Lane (lane.h) starts those that only move bytes; reductions are
// written above it, in collectives/worker_all_reduce.h.
//
//   begin ──> try_advance() ... ──> done            the lane is free for the next operation
//                    │
//                    └─ throws, or is dropped ──> the group is aborted: the others wait for it

#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include "tutti/base/deadline.h"
#include "tutti/group/operation.h"

namespace tutti {

class Lane;

/// A future that whoever waits for it, or asks, moves on. Memory that was given to it must live,
/// and stay as it is, until it is done; an operation that is dropped before aborts the group, since
/// the others wait for it. Used by one thread at a time.
class Transfer {
 public:
  virtual ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Does what can be done without waiting; true when all is done. Throws what wait() throws,
  /// though it looks only now and then whether peers are gone.
  bool advance();

  /// Sets the deadline of an operation that began long before it is waited for.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  /// Waits until it is done: with what all ranks concerned have sent, never without one of them. If
  /// a rank dies during an operation, ranks that need nothing more of it may complete, and fail in
  /// the next one. Throws kUnavailable when a peer is gone or the deadline has passed,
  /// kInvalidArgument when ranks make different calls, kFailedPrecondition when one has left out a
  /// step, kCancelled when a rank gave up.
  void wait() { wait_until(Deadline::forever()); }

  /// The same, but no longer than `until`; true when it is done.
  bool wait_until(const Deadline& until);

 protected:
  Transfer(Lane& lane, const Operation& operation, Deadline deadline);

  /// Does what it can; returns the rank it cannot go on without, or kDone.
  virtual int try_advance() = 0;
  static constexpr int kDone = -1;

  Lane& lane_;  // outlives every operation on it
  const Fingerprint fingerprint_;

 private:
  bool poll(int* missing);
  void give_up(const std::exception_ptr& why);
  bool poll_or_throw(int* missing);

  Deadline deadline_;
  std::optional<Deadline::Clock::time_point> waits_since_;
  uint32_t advances_ = 0;
  bool done_ = false;
};

}  // namespace tutti
