// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/future.h"

#include "tutti/base/error.h"

namespace tutti::internal {

void FutureState::wait_or_throw(const Deadline& deadline, Clock& clock) const {
  if (!wait(deadline, clock)) {
    throw Error(ErrorCode::kDeadlineExceeded,
                message(what_, ": there was no result before the deadline."));
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void FutureState::publish(std::exception_ptr error) {
  error_ = std::move(error);
  std::vector<std::function<void()>> callbacks;
  {
    const MutexLock lock(mutex_);
    ready_.bump();
    callbacks.swap(callbacks_);
  }
  for (const auto& each : callbacks) each();
}

std::exception_ptr FutureState::dropped() const {
  return std::make_exception_ptr(
      Error(ErrorCode::kCancelled, message(what_, ": it was dropped before there was a result.")));
}

void FutureState::on_ready(std::function<void()> callback) {
  {
    const MutexLock lock(mutex_);
    if (!is_ready()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

}  // namespace tutti::internal
