// SPDX-License-Identifier: Apache-2.0
//
// A clock that moves when a test says so.

#pragma once

#include <atomic>
#include <chrono>

#include "tutti/base/clock.h"

namespace tutti::test {

/// A thread that sleeps moves the time forward itself, so nothing takes long; a thread that waits
/// for a word waits until the word changes, or until some other thread has moved the time far
/// enough. Thread-safe.
class FakeClock final : public Clock {
 public:
  Time now() const override { return Time(Duration(now_.load())); }

  void sleep_until(Time when) override {
    Duration::rep current = now_.load();
    while (current < when.time_since_epoch().count() &&
           !now_.compare_exchange_weak(current, when.time_since_epoch().count())) {
    }
  }

  // Nothing wakes it when the time moves, so it looks every millisecond of real time.
  bool park(const WaitWord& word, uint32_t seen, const Deadline& deadline) override {
    while (!word.park(seen, Deadline::after(std::chrono::milliseconds(1)))) {
      if (passed(deadline)) return word.load() != seen;
    }
    return true;
  }

  void advance(Duration by) { now_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> now_{Duration(std::chrono::hours(1)).count()};
};

}  // namespace tutti::test
