// SPDX-License-Identifier: Apache-2.0
//
// One line per event, on standard error unless the program sets its own sink.
// The level comes from TUTTI_LOG_LEVEL (debug, info, warning, error, off) or
// from set_log_level(), which wins.

#pragma once

#include <functional>
#include <string>

#include "tutti/base/error.h"

namespace tutti {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

/// Receives every line at or above the level, without a newline. May be called
/// from any thread, one call at a time. Must not log; its exceptions are dropped.
using LogSink = std::function<void(LogLevel level, const std::string& line)>;

/// Replaces the sink and returns the previous one; an empty sink means standard error.
LogSink set_log_sink(LogSink sink);

void set_log_level(LogLevel level);
LogLevel log_level();

/// Writes one line. Cheap when the level is off: test with log_level() before
/// building an expensive message.
void log(LogLevel level, const std::string& line);

}  // namespace tutti
