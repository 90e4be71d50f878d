// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of rpc: options with a secret, receivers that collect, deadlines.

#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/listener.h"

#include "tests/support/eventually.h"

namespace tutti::rpc::test {

using tutti::test::eventually;

inline const std::string kSecret = "a secret of thirty-two bytes 123";
inline const std::string kOtherSecret = "another secret of 32 bytes 45678";

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
inline SecurityOptions with_secret(const std::string& secret = kSecret) {
  return {.job_secret = secret};
}
inline ListenerOptions listener_options() { return {.security = with_secret()}; }
inline ChannelOptions channel_options() { return {.security = with_secret()}; }

inline std::shared_ptr<Channel> connect(const Listener& listener,
                                        const ChannelOptions& options = channel_options()) {
  return Channel::connect(listener.address(), options, soon());
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string text_of(const Message& message) {
  std::string text(message.size(), '\0');
  message.copy_to(0, std::as_writable_bytes(std::span(text)));
  return text;
}

inline std::string what_of(const std::exception_ptr& error) {
  if (error == nullptr) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

/// Collects the messages of one stream. Thread-safe.
class Collector : public StreamReceiver {
 public:
  bool on_message(Message message) override {
    MutexLock lock(mutex_);
    EXPECT_FALSE(closed_) << "a message after the end";
    messages_.push_back(text_of(message));
    return pause_after_ == 0 || messages_.size() % pause_after_ != 0;
  }
  void on_closed(std::exception_ptr why) override {
    MutexLock lock(mutex_);
    EXPECT_FALSE(closed_) << "closed twice";
    closed_ = true;
    why_ = std::move(why);
  }

  void pause_after(size_t count) { pause_after_ = count; }
  size_t count() const {
    MutexLock lock(mutex_);
    return messages_.size();
  }
  std::vector<std::string> messages() const {
    MutexLock lock(mutex_);
    return messages_;
  }
  bool closed() const {
    MutexLock lock(mutex_);
    return closed_;
  }
  std::exception_ptr why() const {
    MutexLock lock(mutex_);
    return why_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> messages_;
  bool closed_ = false;
  std::exception_ptr why_;
  size_t pause_after_ = 0;
};

/// Remembers whether and why a stream broke. Thread-safe.
class BrokenFlag {
 public:
  std::function<void(std::exception_ptr)> callback() {
    return [this](std::exception_ptr why) {
      MutexLock lock(mutex_);
      ++count_;
      why_ = std::move(why);
    };
  }
  int count() const {
    MutexLock lock(mutex_);
    return count_;
  }
  std::exception_ptr why() const {
    MutexLock lock(mutex_);
    return why_;
  }

 private:
  mutable Mutex mutex_;
  int count_ = 0;
  std::exception_ptr why_;
};

}  // namespace tutti::rpc::test
