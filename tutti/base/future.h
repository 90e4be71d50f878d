// SPDX-License-Identifier: Apache-2.0
//
// A result that another thread delivers: a Promise is fulfilled once, and any number of Futures
// wait for it, with a deadline, or are called back.
//
//   Promise<int> promise("Table::pull");          Future<int> rows = promise.future();
//   promise.set(3);   or   promise.fail(error);   rows.get(deadline);

#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/clock.h"
#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"

namespace tutti {

namespace internal {

/// What a Promise and its Futures share, without the value. Thread-safe.
class FutureState {
 public:
  explicit FutureState(std::string what) : what_(std::move(what)) {}

  bool is_ready() const { return ready_.load() != 0; }
  bool wait(const Deadline& deadline, Clock& clock) const {
    return is_ready() || clock.park(ready_, 0, deadline);
  }
  /// Throws the error of the promise, or kDeadlineExceeded if there is no result in time.
  void wait_or_throw(const Deadline& deadline, Clock& clock) const;
  /// Null as long as it is not ready.
  std::exception_ptr error() const { return is_ready() ? error_ : nullptr; }

  /// Returns true to the first caller, which then calls publish().
  bool claim() { return !claimed_.exchange(true); }
  void publish(std::exception_ptr error);
  /// kCancelled
  std::exception_ptr dropped() const;

  void on_ready(std::function<void()> callback);

 private:
  const std::string what_;
  WaitWord ready_;  // 1 once published; error_ does not change any more
  std::atomic<bool> claimed_{false};
  std::exception_ptr error_;
  Mutex mutex_;
  std::vector<std::function<void()>> callbacks_ TUTTI_GUARDED_BY(mutex_);
};

/// The same with the value, which does not change once published. Thread-safe.
template <class T>
struct FutureValue : FutureState {
  using FutureState::FutureState;
  std::optional<std::conditional_t<std::is_void_v<T>, std::monostate, T>> value;
};

}  // namespace internal

template <class T>
class Promise;

/// A handle: copies wait for the same result. Thread-safe.
template <class T>
class [[nodiscard]] Future {
 public:
  /// Whether there is a result: a value or an error.
  bool is_ready() const { return state_->is_ready(); }

  /// Waits for a result; returns false at the deadline.
  bool wait(const Deadline& deadline, Clock& clock = Clock::steady()) const {
    return state_->wait(deadline, clock);
  }

  /// Waits for the result, and returns the value, which lives as long as any handle (a temporary
  /// returns a copy), or throws the error. Throws kDeadlineExceeded if there is none in time, and
  /// kCancelled if the promise was dropped.
  std::add_lvalue_reference_t<const T> get(const Deadline& deadline,
                                           Clock& clock = Clock::steady()) const& {
    state_->wait_or_throw(deadline, clock);
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }
  T get(const Deadline& deadline, Clock& clock = Clock::steady()) && {
    state_->wait_or_throw(deadline, clock);
    if constexpr (!std::is_void_v<T>) return *state_->value;
  }

  /// Why there is no value; null if there is one, or if nothing is known yet.
  std::exception_ptr error() const { return state_->error(); }

  /// Calls `callback` once: immediately if there is a result, else on the thread that delivers it.
  /// It must not block or throw, and is called without a lock.
  void on_ready(std::function<void()> callback) const { state_->on_ready(std::move(callback)); }

 private:
  friend class Promise<T>;
  explicit Future(std::shared_ptr<internal::FutureValue<T>> state) : state_(std::move(state)) {}

  std::shared_ptr<internal::FutureValue<T>> state_;
};

/// The side that delivers. Any thread may fulfil it, and the first result counts; as an object to
/// move or destroy it is not thread-safe.
template <class T>
class Promise {
 public:
  /// `what` begins the messages of errors: the public name of what was asked for.
  explicit Promise(std::string what)
      : state_(std::make_shared<internal::FutureValue<T>>(std::move(what))) {}
  ~Promise() {
    if (state_ != nullptr && state_->claim()) state_->publish(state_->dropped());
  }
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;

  Future<T> future() const { return Future<T>(state_); }

  /// Delivers a value, made from the arguments. Returns false if there is a result already. If
  /// making it throws, that is the result.
  template <class... Args>
  bool set(Args&&... args) {
    const auto state = state_;  // whoever waits may destroy the promise immediately
    if (!state->claim()) return false;
    std::exception_ptr error;
    try {
      state->value.emplace(std::forward<Args>(args)...);
    } catch (...) {
      error = std::current_exception();
    }
    state->publish(std::move(error));
    return true;
  }

  /// Delivers an error. Returns false if there is a result already.
  bool fail(std::exception_ptr error) {
    const auto state = state_;  // as in set()
    if (!state->claim()) return false;
    state->publish(std::move(error));
    return true;
  }

 private:
  std::shared_ptr<internal::FutureValue<T>> state_;
};

}  // namespace tutti
