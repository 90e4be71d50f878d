// SPDX-License-Identifier: Apache-2.0
//
// Computes the delays between attempts, which grow.

#pragma once

#include <algorithm>

#include "tutti/base/clock.h"
#include "tutti/base/deadline.h"

namespace tutti {

/// Each delay is twice as long as the one before, up to a longest one. Not thread-safe.
class Backoff {
 public:
  /// `clock` outlives this object.
  Backoff(Clock::Duration first, Clock::Duration longest, Clock& clock = Clock::steady())
      : first_(first), longest_(longest), next_(first), clock_(clock) {}

  /// Returns the current delay, and doubles it for the next call.
  Clock::Duration next() {
    const Clock::Duration delay = next_;
    next_ = std::min(2 * next_, longest_);
    return delay;
  }

  /// The end of a delay that begins now, but not after `limit`: for waits that an event may end
  /// earlier.
  Deadline next(const Deadline& limit) { return earlier(limit, clock_.deadline_after(next())); }

  /// Whether there is time for another attempt: the next delay ends before the deadline.
  bool ends_before(const Deadline& deadline) const {
    return !deadline.passed(clock_.now() + next_);
  }

  /// Sleeps for the next delay.
  void sleep() { clock_.sleep_until(clock_.now() + next()); }

  /// Begins again with the first delay, after an attempt that made progress.
  void reset() { next_ = first_; }

 private:
  const Clock::Duration first_;
  const Clock::Duration longest_;
  Clock::Duration next_;
  Clock& clock_;
};

}  // namespace tutti
