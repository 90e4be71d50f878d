// SPDX-License-Identifier: Apache-2.0
//
// Barriers as a programmer would write them by hand, for the peers.

#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tutti/device/cpu_threads.h"

namespace bench {

/// Spins; yields the core immediately when there are more parties than cores.
class SpinBarrier {
 public:
  void wait(int parties) {
    const int spins = parties > tutti::usable_cores() ? 20 : 1000;
    const int phase = phase_.load(std::memory_order_acquire);
    if (count_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties) {
      count_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int i = 0; phase_.load(std::memory_order_acquire) == phase; ++i) {
      if (i < spins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        sched_yield();
      }
    }
  }

 private:
  std::atomic<int> count_{0};
  alignas(64) std::atomic<int> phase_{0};
};

/// Uses a mutex and a condition variable.
class CondBarrier {
 public:
  void wait(int parties) {
    std::unique_lock lock(mutex_);
    const int phase = phase_;
    if (++count_ == parties) {
      count_ = 0;
      ++phase_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return phase_ != phase; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  int phase_ = 0;
};

}  // namespace bench
