// SPDX-License-Identifier: Apache-2.0
//
// Threads that run handlers of calls, so that one that blocks does not hold up the network.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"

namespace tutti::rpc::internal {

/// Starts a thread when a task finds none idle, up to a limit. Thread-safe.
class HandlerPool {
 public:
  explicit HandlerPool(size_t max_threads) : max_threads_(max_threads) {}
  ~HandlerPool() { stop(); }

  /// Tasks must not throw. False, and the task is not run, after stop().
  bool post(std::function<void()> task);
  /// Drops what has not begun and waits for what has.
  void stop();

 private:
  void run();

  const size_t max_threads_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ TUTTI_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Thread>> threads_ TUTTI_GUARDED_BY(mutex_);
  size_t idle_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool stopped_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::rpc::internal
