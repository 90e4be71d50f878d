// SPDX-License-Identifier: Apache-2.0
//
// A rate limit for log lines that peers can cause.

#pragma once

#include <chrono>
#include <string>

#include "tutti/base/log.h"
#include "tutti/base/mutex.h"

namespace tutti::rpc::internal {

/// Writes at most ten lines per ten seconds and says how many were suppressed. Thread-safe.
class LimitedLog {
 public:
  void warn(const std::string& line);

 private:
  using Clock = std::chrono::steady_clock;

  Mutex mutex_;
  Clock::time_point since_ TUTTI_GUARDED_BY(mutex_) = Clock::now();
  int written_ TUTTI_GUARDED_BY(mutex_) = 0;
  int left_out_ TUTTI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tutti::rpc::internal
