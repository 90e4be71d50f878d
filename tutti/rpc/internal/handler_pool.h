// SPDX-License-Identifier: Apache-2.0
//
// Threads that run the handlers of calls, so that a blocking handler does not stall the network.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"

namespace tutti::rpc::internal {

/// Starts a thread when a task finds no idle one, up to a limit. Thread-safe.
class HandlerPool {
 public:
  explicit HandlerPool(size_t max_threads) : max_threads_(max_threads) {}
  ~HandlerPool() { stop(); }

  /// Tasks must not throw. Returns false after stop(), and does not run the task.
  bool post(std::function<void()> task);
  /// Drops the tasks that have not begun and waits for those that have.
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
