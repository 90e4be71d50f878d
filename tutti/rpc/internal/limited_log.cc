// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/limited_log.h"

namespace tutti::rpc::internal {

void LimitedLog::warn(const std::string& line) {
  constexpr int kLines = 10;
  constexpr std::chrono::seconds kWindow(10);
  int left_out = 0;
  {
    MutexLock lock(mutex_);
    const auto now = Clock::now();
    if (now - since_ >= kWindow) {
      since_ = now;
      written_ = 0;
      left_out = left_out_;
      left_out_ = 0;
    }
    if (written_ >= kLines) {
      ++left_out_;
      return;
    }
    ++written_;
  }
  if (left_out > 0) {
    log(LogLevel::kWarning, message("rpc: ", left_out, " similar lines were suppressed."));
  }
  log(LogLevel::kWarning, line);
}

}  // namespace tutti::rpc::internal
