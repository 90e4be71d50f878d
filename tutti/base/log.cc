// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/log.h"

#include <atomic>
#include <cstdio>
#include <utility>

#include "tutti/base/env.h"
#include "tutti/base/mutex.h"

namespace tutti {
namespace {

const char* label(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug: ";
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    default:
      return "";
  }
}

LogLevel level_from_environment() {
  const auto text = read_env("TUTTI_LOG_LEVEL");
  if (!text) return LogLevel::kInfo;
  if (*text == "debug") return LogLevel::kDebug;
  if (*text == "info") return LogLevel::kInfo;
  if (*text == "warning") return LogLevel::kWarning;
  if (*text == "error") return LogLevel::kError;
  if (*text == "off") return LogLevel::kOff;
  std::fprintf(stderr,
               "tutti: TUTTI_LOG_LEVEL is \"%s\"; it must be debug, info, warning, error or off. "
               "Using info.\n",
               text->c_str());
  return LogLevel::kInfo;
}

struct LogState {
  Mutex mutex;
  LogSink sink TUTTI_GUARDED_BY(mutex);
  std::atomic<LogLevel> level{level_from_environment()};
};

// Never destroyed: threads may log while the process exits.
LogState& state() {
  static auto* const instance = new LogState;
  return *instance;
}

}  // namespace

LogSink set_log_sink(LogSink sink) {
  MutexLock lock(state().mutex);
  return std::exchange(state().sink, std::move(sink));
}

void set_log_level(LogLevel level) { state().level.store(level, std::memory_order_relaxed); }

LogLevel log_level() { return state().level.load(std::memory_order_relaxed); }

void log(LogLevel level, const std::string& line) {
  if (level < log_level() || level == LogLevel::kOff) return;
  MutexLock lock(state().mutex);
  if (state().sink) {
    try {
      state().sink(level, line);
    } catch (...) {
      // Replicas may be in the middle of a meeting, which a sink must not abort.
      std::fprintf(stderr, "tutti: the log sink threw an exception on: %s\n", line.c_str());
    }
  } else {
    std::fprintf(stderr, "tutti: %s%s\n", label(level), line.c_str());
  }
}

}  // namespace tutti
