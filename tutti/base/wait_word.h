// SPDX-License-Identifier: Apache-2.0
//
// A 32-bit word that threads wait on: poll for a short while, then sleep in the
// kernel, with a deadline. It is what the library waits on everywhere.
//
//   waiter:  seen = word.load();  if (nothing to do yet) word.wait(seen, ...)
//   waker:   change the state;  word.bump();

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "tutti/base/deadline.h"

namespace tutti {

/// How a wait begins, before it sleeps in the kernel.
enum class WaitMode {
  kSpin,   ///< Poll as long as a Spin goes on: every party has a core of its own.
  kYield,  ///< Offer the core to others a few times: more parties than cores.
};

/// For loops that poll: lets the core rest for a moment.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long a loop polls before it sleeps: 100 us, and up to 1 ms as long as nobody else wants the
/// core. A sleeper takes some 50 us to wake up, and makes those late that wait for it in turn; but
/// a core that others want is not to be wasted.
class Spin {
 public:
  /// Whether to go on. Reads the clock: to be asked after some dozens of polls.
  bool goes_on();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point next_look_;
  Clock::time_point end_;
};

/// Thread-safe. Everything written before bump() is visible after a wait that
/// the bump ended.
class WaitWord {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  /// Adds to the word and wakes every waiter.
  void bump(uint32_t delta = 1);

  /// Flips bits of the word and wakes every waiter.
  void flip(uint32_t bits);

  /// Returns when the word differs from `seen` (true), or after a short while (false).
  bool poll(uint32_t seen, WaitMode mode) const;

  /// Sleeps until the word differs from `seen` (true), or until the deadline (false).
  bool park(uint32_t seen, const Deadline& deadline) const;

  /// poll(), then park().
  bool wait(uint32_t seen, WaitMode mode, const Deadline& deadline) const {
    return poll(seen, mode) || park(seen, deadline);
  }

 private:
  void wake() const;

  std::atomic<uint32_t> value_{0};
  mutable std::atomic<uint32_t> sleepers_{0};
};

}  // namespace tutti
