// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/wait_word.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <utility>

namespace tutti {
namespace {

// The first covers the gap between two steps of a tight loop, and is about what parking and waking
// cost. The second covers the time by which one replica may lag behind another. A pause takes 5 to
// 50 ns, so the clock is read only now and then.
constexpr std::chrono::microseconds kSpinTime{100};
constexpr std::chrono::microseconds kLongestSpin{1000};
constexpr uint32_t kYields = 50;

long futex(const std::atomic<uint32_t>* word, int operation, uint32_t value,
           const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return syscall(SYS_futex, reinterpret_cast<const uint32_t*>(word), operation | FUTEX_PRIVATE_FLAG,
                 value, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
}

// Whether this thread was preempted since the last call. On a busy machine that happens every few
// milliseconds.
bool core_is_wanted() {
  static thread_local long seen = -1;
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return std::exchange(seen, usage.ru_nivcsw) != usage.ru_nivcsw;
}

}  // namespace

bool Polling::yield() const {
  if (polls_ > kYields) return false;
  sched_yield();
  return true;
}

bool Polling::look_at_clock() {
  const Time now = Deadline::Clock::now();
  if (end_ == Time()) {
    end_ = now + kLongestSpin;
  } else if (now < next_look_) {
    return true;
  } else if (now >= end_ || core_is_wanted()) {
    return false;
  }
  next_look_ = now + kSpinTime;
  return true;
}

void WaitWord::bump(uint32_t delta) {
  value_.fetch_add(delta, std::memory_order_seq_cst);
  wake();
}

void WaitWord::flip(uint32_t bits) {
  value_.fetch_xor(bits, std::memory_order_seq_cst);
  wake();
}

// Both sides use sequential consistency, so either the waiter sees the new value
// or this thread sees the sleeper.
void WaitWord::wake() const {
  if (sleepers_.load(std::memory_order_seq_cst) != 0) {
    futex(&value_, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

bool WaitWord::poll(uint32_t seen, WaitMode mode) const {
  return poll_until(mode, [&] { return load() != seen; });
}

bool WaitWord::park(uint32_t seen, const Deadline& deadline) const {
  timespec until{};
  const bool forever = deadline.when() == Deadline::Clock::time_point::max();
  if (!forever) {
    // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, which is what
    // std::chrono::steady_clock counts on Linux.
    const auto since = deadline.when().time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    until.tv_sec = seconds.count();
    until.tv_nsec = std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool changed = true;
  while (value_.load(std::memory_order_seq_cst) == seen) {
    futex(&value_, FUTEX_WAIT_BITSET, seen, forever ? nullptr : &until);
    if (value_.load(std::memory_order_seq_cst) == seen && deadline.passed()) {
      changed = false;
      break;
    }
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return changed;
}

}  // namespace tutti
