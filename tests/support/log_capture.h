// SPDX-License-Identifier: Apache-2.0
//
// Collects what the library logs while an object lives.

#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/base/log.h"
#include "tutti/base/mutex.h"

namespace tutti::test {

struct LogLine {
  LogLevel level;
  std::string text;
};

/// Replaces the log sink and the level, and restores both in its destructor.
class LogCapture {
 public:
  explicit LogCapture(LogLevel level = LogLevel::kDebug) : level_before_(log_level()) {
    set_log_level(level);
    sink_before_ = set_log_sink([this](LogLevel line_level, const std::string& line) {
      MutexLock lock(mutex_);
      lines_.push_back({line_level, line});
    });
  }
  ~LogCapture() {
    set_log_sink(std::move(sink_before_));
    set_log_level(level_before_);
  }

  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<LogLine> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

  /// How many lines contain `part`.
  int count(std::string_view part) const {
    const auto all = lines();
    return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const LogLine& line) {
      return line.text.find(part) != std::string::npos;
    }));
  }

  /// All lines, for a failure message.
  std::string text() const {
    std::string joined;
    for (const LogLine& line : lines()) joined += line.text + '\n';
    return joined;
  }

 private:
  LogLevel level_before_;
  LogSink sink_before_;
  mutable Mutex mutex_;
  std::vector<LogLine> lines_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::test
