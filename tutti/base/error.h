// SPDX-License-Identifier: Apache-2.0
//
// The one exception type of the library, and message(), which builds its messages.
// A message reads: who: what happened, with the values. What to do.

#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

/// What kind of failure an Error reports; docs/errors.md says what to catch.
enum class ErrorCode {
  kInvalidArgument,     ///< The call is wrong, whatever the state.
  kFailedPrecondition,  ///< The call is right, but not here or not now.
  kNotFound,
  kUnimplemented,  ///< Not in this build or on this kind of device.
  kUnavailable,    ///< A peer is gone; a retry may help.
  kDeadlineExceeded,
  kCancelled,  ///< Stopped because something else failed.
  kDataLoss,
  kInternal,  ///< A defect of this library.
};

/// "kInvalidArgument", ...
const char* to_string(ErrorCode code);

/// Everything the library itself throws. Exceptions of user functions and of LibTorch pass through
/// with their own type. Immutable.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Joins its arguments, as operator<< prints them, into one string. (Not named
/// str: argument-dependent lookup would also find c10::str.)
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  ((out << parts), ...);
  return out.str();
}

/// The text in double quotes, for a message: control characters become '?', long text is
/// truncated.
std::string in_quotes(std::string_view text);

/// Makes text from a peer safe to log: keeps printable ASCII, writes everything else as \xNN, and
/// truncates to `limit` characters.
std::string printable(std::string_view text, size_t limit = 500);

namespace internal {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace internal

}  // namespace tutti

/// Guards an invariant of the library itself; throws kInternal.
#define TUTTI_CHECK(condition)                                         \
  do {                                                                 \
    if (!(condition)) [[unlikely]]                                     \
      ::tutti::internal::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
