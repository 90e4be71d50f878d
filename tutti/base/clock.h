// SPDX-License-Identifier: Apache-2.0
//
// Tells the time to code with deadlines, heartbeats or retries. Tests replace it with a clock that
// they advance (tests/support/fake_clock.h). State machines take the time as an argument and do not
// need a clock; the thread that drives them has one.

#pragma once

#include <chrono>
#include <cstdint>

#include "tutti/base/deadline.h"
#include "tutti/base/wait_word.h"

namespace tutti {

/// A monotonic clock. Thread-safe.
class Clock {
 public:
  using Duration = Deadline::Clock::duration;
  using Time = Deadline::Clock::time_point;

  Clock() = default;
  virtual ~Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  virtual Time now() const = 0;

  /// Blocks this thread until `when`.
  virtual void sleep_until(Time when) = 0;

  /// Sleeps until the word differs from `seen` (true), or until the deadline (false).
  virtual bool park(const WaitWord& word, uint32_t seen, const Deadline& deadline) = 0;

  /// A deadline after a delay that begins now.
  template <class Rep, class Period>
  Deadline deadline_after(std::chrono::duration<Rep, Period> delay) const {
    return Deadline::after(delay, now());
  }
  bool passed(const Deadline& deadline) const { return deadline.passed(now()); }

  /// The monotonic clock of the system.
  static Clock& steady();
};

}  // namespace tutti
