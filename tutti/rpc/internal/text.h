// SPDX-License-Identifier: Apache-2.0
//
// Text that came from a peer, made safe for a log, and log lines that a peer cannot multiply.

#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "tutti/base/log.h"
#include "tutti/base/mutex.h"

namespace tutti::rpc::internal {

/// Printable ASCII as it is, everything else as \xNN, cut to `limit` characters.
std::string printable(std::string_view text, size_t limit = 500);

/// Lets through ten lines per ten seconds and says how many were left out. Thread-safe.
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
