// SPDX-License-Identifier: Apache-2.0
//
// A 32-bit word that threads wait on: they poll briefly, then sleep in the
// kernel, with a deadline. Every wait of the library is built on it.
//
//   waiter:  seen = word.load();  if (nothing to do yet) word.wait(seen, ...)
//   waker:   change the state;  word.bump();

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "tutti/base/deadline.h"

namespace tutti {

/// What a wait does before it sleeps in the kernel.
enum class WaitMode {
  kSpin,   ///< Poll for as long as a Spin lasts: every thread has its own core.
  kYield,  ///< Yield the core a few times: there are more threads than cores.
};

/// The processor's pause hint, for polling loops.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long a loop polls before it sleeps: 100 us, or up to 1 ms while no other thread wants the
/// core. A sleeper takes some 50 us to wake up and delays every thread that waits for it, but a
/// core that others want must not be wasted.
class Spin {
 public:
  /// Whether to keep polling. Reads the clock, so call it only every few dozen polls.
  bool goes_on();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point next_look_;
  Clock::time_point end_;
};

/// Thread-safe. Everything written before bump() is visible after the wait that
/// it ended.
class WaitWord {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  /// Adds to the word and wakes every waiter.
  void bump(uint32_t delta = 1);

  /// Flips bits of the word and wakes every waiter.
  void flip(uint32_t bits);

  /// Polls until the word differs from `seen` (true), or for a short while (false).
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
