// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/thread.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <utility>

namespace tutti {
namespace {

std::atomic<unsigned> forks{0};

}  // namespace

unsigned fork_count() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

Thread::Thread(std::string name, std::function<void()> body)
    : thread_([name = std::move(name), body = std::move(body)] {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        body();
      }),
      fork_count_(fork_count()) {}

Thread::~Thread() {
  if (fork_count() == fork_count_) {
    thread_.join();
  } else {
    // In a forked child the thread does not exist: joining would wait for ever,
    // and a joinable std::thread may not be destroyed. The handle is left behind.
    new std::thread(std::move(thread_));
  }
}

}  // namespace tutti
