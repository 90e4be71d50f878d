// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/handler_pool.h"

#include <utility>

namespace tutti::rpc::internal {

bool HandlerPool::post(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (stopped_) return false;
  tasks_.push_back(std::move(task));
  if (tasks_.size() > idle_ && threads_.size() < max_threads_) {
    threads_.push_back(std::make_unique<Thread>("tutti/handler", [this] { run(); }));
  }
  changed_.notify_one();
  return true;
}

void HandlerPool::stop() {
  std::vector<std::unique_ptr<Thread>> threads;
  std::deque<std::function<void()>> dropped;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    threads.swap(threads_);
    dropped.swap(tasks_);
    changed_.notify_all();
  }
  threads.clear();
}

void HandlerPool::run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      ++idle_;
      while (tasks_.empty() && !stopped_) changed_.wait(mutex_);
      --idle_;
      if (stopped_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace tutti::rpc::internal
