// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_watchdog.h"

#include <utility>

namespace tutti::internal {

NcclWatchdog::~NcclWatchdog() {
  std::unique_ptr<Thread> thread;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    thread = std::move(thread_);
  }
  changed_.bump();
}

void NcclWatchdog::watch(const Deadline& deadline, std::function<void()> act) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    watch_ = Watch{deadline, std::move(act)};
    // Usually the thread already wakes by then, so a call need not wake it.
    wake = deadline.when() < wakes_at_.when();
    if (thread_ == nullptr) thread_ = std::make_unique<Thread>("tutti/nccl", [this] { body(); });
  }
  if (wake) changed_.bump();
}

void NcclWatchdog::dismiss() {
  // The thread is not woken: it checks again when the old deadline has passed.
  MutexLock lock(mutex_);
  watch_.reset();
}

void NcclWatchdog::body() {
  for (;;) {
    const uint32_t seen = changed_.load();
    Deadline until = Deadline::forever();  // until watch() or the destructor wakes it
    std::function<void()> act;
    {
      MutexLock lock(mutex_);
      if (stop_) return;
      if (watch_) until = watch_->deadline;
      if (until.passed()) {
        act = std::move(watch_->act);
        watch_.reset();
      }
      wakes_at_ = until;
    }
    if (act) {
      act();
    } else {
      changed_.park(seen, until);
    }
  }
}

}  // namespace tutti::internal
