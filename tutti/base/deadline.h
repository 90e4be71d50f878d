// SPDX-License-Identifier: Apache-2.0
//
// A point in time after which a wait gives up.

#pragma once

#include <chrono>

namespace tutti {

/// Immutable. "Forever" must be written out.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Ten years or more means forever: such a delay could overflow the clock.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> delay) {
    return after(delay, Clock::now());
  }
  /// The same for a delay that began at `now`.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> delay, Clock::time_point now) {
    if (delay >= std::chrono::hours(24 * 3650)) return forever();
    return Deadline(now + std::chrono::duration_cast<Clock::duration>(delay));
  }
  static Deadline at(Clock::time_point when) { return Deadline(when); }
  static Deadline forever() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return when_ != Clock::time_point::max() && Clock::now() >= when_; }
  bool passed(Clock::time_point now) const {
    return when_ != Clock::time_point::max() && now >= when_;
  }
  Clock::time_point when() const { return when_; }

  friend Deadline earlier(const Deadline& a, const Deadline& b) {
    return a.when_ < b.when_ ? a : b;
  }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}

  Clock::time_point when_;
};

}  // namespace tutti
