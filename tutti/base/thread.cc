// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/thread.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <system_error>
#include <utility>

#include "tutti/base/error.h"

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
    : thread_(start(std::move(name), std::move(body))), fork_count_(fork_count()) {}

std::thread Thread::start(std::string name, std::function<void()> body) {
  try {
    return std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
      body();
    });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kUnavailable,
                message("tutti: cannot start thread \"", name, "\": ", error.what(),
                        ". A limit has been reached: this process's memory (ulimit -v), the "
                        "user's threads (ulimit -u) or the container's (pids.max). Raise it."));
  }
}

Thread::~Thread() {
  if (fork_count() == fork_count_) {
    thread_.join();
  } else {
    // The thread does not exist in a forked child: joining would wait forever,
    // and destroying a joinable std::thread would terminate. The handle is leaked.
    new std::thread(std::move(thread_));
  }
}

}  // namespace tutti
