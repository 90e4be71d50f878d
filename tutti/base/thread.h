// SPDX-License-Identifier: Apache-2.0
//
// The class of every thread in the library: named, and joined by its owner.

#pragma once

#include <functional>
#include <string>
#include <thread>

namespace tutti {

/// A thread that joins in its destructor. The name (truncated to 15 characters by the kernel) is
/// what `top -H` and a debugger show. Not thread-safe: its owner makes and destroys it.
class Thread {
 public:
  /// Throws kUnavailable if the system refuses to start another thread.
  Thread(std::string name, std::function<void()> body);
  ~Thread();

  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

 private:
  static std::thread start(std::string name, std::function<void()> body);

  std::thread thread_;
  unsigned fork_count_;
};

/// The number of forks between the first process of this program and this one.
/// Threads do not survive a fork: an object that owns threads compares the count
/// at its construction with the current one.
unsigned fork_count();

}  // namespace tutti
