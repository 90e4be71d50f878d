// SPDX-License-Identifier: Apache-2.0
//
// Every thread of the library: named, owned, joined by its owner.

#pragma once

#include <functional>
#include <string>
#include <thread>

namespace tutti {

/// A thread that joins in its destructor. The name (cut to 15 characters by
/// the kernel) is what `top -H` and a debugger show.
class Thread {
 public:
  /// Throws kUnavailable if the system gives no more threads.
  Thread(std::string name, std::function<void()> body);
  ~Thread();

  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

 private:
  static std::thread start(std::string name, std::function<void()> body);

  std::thread thread_;
  unsigned fork_count_;
};

/// How many forks lie between the first process of this program and this one.
/// Threads do not survive a fork: an object that owns some compares the count
/// of its construction with the present one.
unsigned fork_count();

}  // namespace tutti
