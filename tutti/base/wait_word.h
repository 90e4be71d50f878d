// SPDX-License-Identifier: Apache-2.0
//
// How threads wait: they poll briefly, then sleep in the kernel, with a deadline. The word is what
// most of them wait for.
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
  kSpin,   ///< Poll for a while: every thread has its own core.
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

/// How long a thread polls before it sleeps; every wait that polls is built on it. With kSpin 100
/// us, or up to 1 ms while no other thread wants the core: a sleeper takes some 50 us to wake up
/// and delays every thread that waits for it, but a core that others want must not be wasted. Used
/// by one thread, for one wait.
class Polling {
 public:
  explicit Polling(WaitMode mode) : mode_(mode) {}

  /// Called after a poll that found nothing: lets a moment pass and returns true, or returns false
  /// when it is time to sleep.
  bool goes_on() {
    ++polls_;
    if (mode_ == WaitMode::kYield) return yield();
    pause_briefly();
    return polls_ % kPollsBetweenLooks != 0 || look_at_clock();
  }

 private:
  using Time = Deadline::Clock::time_point;

  static constexpr uint32_t kPollsBetweenLooks = 64;

  bool yield() const;
  bool look_at_clock();

  const WaitMode mode_;
  uint32_t polls_ = 0;
  Time next_look_;
  Time end_;
};

/// Polls until `done` returns true (true), or for a short while (false). Then it is time to sleep.
template <class Done>
bool poll_until(WaitMode mode, Done&& done) {
  Polling polling(mode);
  do {
    if (done()) return true;
  } while (polling.goes_on());
  return false;
}

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
