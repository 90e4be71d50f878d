// SPDX-License-Identifier: Apache-2.0
//
// A dedicated thread that reads up to n items ahead of its consumer, for prefetch and for the input
// of replicas.

#pragma once

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"

namespace tutti::data {

/// Used by one consumer. The thread starts with the first next() and ends when the object is
/// destroyed, after the item that it is reading. An exception thrown by `read` reaches the consumer
/// after the items before it, and every later next() throws it again.
template <class Item>
class ReadAhead {
 public:
  /// `read` fills an item and returns false at the end.
  ReadAhead(std::string thread_name, size_t capacity, std::function<bool(Item&)> read)
      : thread_name_(std::move(thread_name)), capacity_(capacity), read_(std::move(read)) {}

  ~ReadAhead() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      room_.notify_all();
    }
    thread_.reset();  // joins
  }

  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits for an item; false at the end.
  bool next(Item& out) {
    if (thread_ == nullptr) thread_ = std::make_unique<Thread>(thread_name_, [this] { work(); });
    const MutexLock lock(mutex_);
    while (items_.empty() && !ended_) changed_.wait(mutex_);
    if (items_.empty()) {
      if (error_ != nullptr) std::rethrow_exception(error_);
      return false;
    }
    out = std::move(items_.front());
    items_.pop_front();
    room_.notify_one();
    return true;
  }

  /// Calls fn(items, ended) with the items that wait for the consumer, while nothing is being read.
  template <class F>
  void save(const F& fn) {
    const MutexLock lock(mutex_);
    paused_ = true;
    while (reading_) changed_.wait(mutex_);
    paused_ = false;
    room_.notify_all();
    if (error_ != nullptr) std::rethrow_exception(error_);
    fn(std::as_const(items_), ended_);  // nothing is read before this lock is released
  }

  /// Puts items in front of all others. Only before the first next().
  void restore(std::deque<Item> items, bool ended) {
    const MutexLock lock(mutex_);
    TUTTI_CHECK(thread_ == nullptr);
    items_ = std::move(items);
    ended_ = ended;
  }

  bool started() const { return thread_ != nullptr; }

 private:
  void work() {
    while (true) {
      {
        const MutexLock lock(mutex_);
        while (!stopping_ && !ended_ && (paused_ || items_.size() >= capacity_)) {
          room_.wait(mutex_);
        }
        if (stopping_ || ended_) return;
        reading_ = true;
      }
      Item item;
      bool has = false;
      std::exception_ptr error;
      try {
        has = read_(item);
      } catch (...) {
        error = std::current_exception();
      }
      const MutexLock lock(mutex_);
      reading_ = false;
      if (has) items_.push_back(std::move(item));
      ended_ = !has;
      error_ = error;
      changed_.notify_all();
    }
  }

  const std::string thread_name_;
  const size_t capacity_;
  const std::function<bool(Item&)> read_;

  Mutex mutex_;
  CondVar room_;
  CondVar changed_;
  std::deque<Item> items_ TUTTI_GUARDED_BY(mutex_);
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
  bool reading_ TUTTI_GUARDED_BY(mutex_) = false;
  bool ended_ TUTTI_GUARDED_BY(mutex_) = false;
  bool paused_ TUTTI_GUARDED_BY(mutex_) = false;
  bool stopping_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all the above
};

}  // namespace tutti::data
