// SPDX-License-Identifier: Apache-2.0
//
// A thread that acts when an all-reduce takes too long. Members check the deadline
// themselves while they wait for a device, but not while they are inside NCCL.

#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"

namespace tutti::internal {

/// Watches one deadline at a time. Thread-safe. The first watch() makes the thread.
class NcclWatchdog {
 public:
  NcclWatchdog() = default;
  ~NcclWatchdog();
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Calls `act` on the watchdog's thread when the deadline passes before dismiss().
  /// `act` must not throw.
  void watch(const Deadline& deadline, std::function<void()> act);

  /// `act` is not called after this has returned, unless it has begun.
  void dismiss();

 private:
  void body();

  struct Watch {
    Deadline deadline;
    std::function<void()> act;
  };

  Mutex mutex_;
  std::optional<Watch> watch_ TUTTI_GUARDED_BY(mutex_);
  Deadline wakes_at_ TUTTI_GUARDED_BY(mutex_) = Deadline::forever();
  bool stop_ TUTTI_GUARDED_BY(mutex_) = false;
  WaitWord changed_;
  std::unique_ptr<Thread> thread_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
