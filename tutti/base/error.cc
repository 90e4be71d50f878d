// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/error.h"

namespace tutti {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "kInvalidArgument";
    case ErrorCode::kFailedPrecondition:
      return "kFailedPrecondition";
    case ErrorCode::kNotFound:
      return "kNotFound";
    case ErrorCode::kUnimplemented:
      return "kUnimplemented";
    case ErrorCode::kUnavailable:
      return "kUnavailable";
    case ErrorCode::kDeadlineExceeded:
      return "kDeadlineExceeded";
    case ErrorCode::kCancelled:
      return "kCancelled";
    case ErrorCode::kDataLoss:
      return "kDataLoss";
    case ErrorCode::kInternal:
      return "kInternal";
  }
  return "unknown";
}

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongestShown = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongestShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return out + (text.size() > kLongestShown ? "...\"" : "\"");
}

std::string printable(std::string_view text, size_t limit) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string safe;
  for (const char letter : text) {
    if (safe.size() >= limit) return safe + "...";
    const auto code = static_cast<unsigned char>(letter);
    if (code >= 0x20 && code < 0x7f) {
      safe += letter;
    } else {
      safe += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
    }
  }
  return safe;
}

namespace internal {

void check_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorCode::kInternal,
              message("tutti: internal check \"", condition, "\" failed at ", file, ":", line,
                      ". This is a defect of the library; please report it."));
}

}  // namespace internal
}  // namespace tutti
