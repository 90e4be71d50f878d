// SPDX-License-Identifier: Apache-2.0
//
// An operation under way on a lane. Lane (lane.h) begins those that only move bytes; reductions are
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

/// A future that advances only while a thread waits for it or calls advance(). Memory that was
/// given to it must live, and not change, until it is done. Dropping it earlier aborts the group,
/// since the others wait for it. Used by one thread at a time.
class Transfer {
 public:
  virtual ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Does what can be done without waiting; returns true when the operation is done. Throws what
  /// wait() throws, but checks only now and then whether peers are gone.
  bool advance();

  /// Sets the deadline of an operation that began long before it is waited for.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  /// Waits until it is done, which needs the data of every rank concerned. If a rank dies during an
  /// operation, ranks that need nothing more from it may complete, and fail in the next operation.
  /// Throws kUnavailable when a peer is gone or the deadline has passed, kInvalidArgument when
  /// ranks make different calls, kFailedPrecondition when one has left out a step, and kCancelled
  /// when a rank gave up.
  void wait() { wait_until(Deadline::forever()); }

  /// The same, but not beyond `until`; returns true when it is done.
  bool wait_until(const Deadline& until);

 protected:
  Transfer(Lane& lane, const Operation& operation, Deadline deadline);

  /// Does what it can; returns the rank that it waits for, or kDone.
  virtual int try_advance() = 0;
  static constexpr int kDone = -1;

  Lane& lane_;  // outlives every operation on it
  const Fingerprint fingerprint_;

 private:
  int poll();
  void give_up(const std::exception_ptr& why);
  void check(int missing, bool is_gone);

  Deadline deadline_;
  std::optional<Deadline::Clock::time_point> waits_since_;
  uint32_t advances_ = 0;
  bool done_ = false;
};

}  // namespace tutti
