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

namespace internal {

void check_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorCode::kInternal,
              message("tutti: the library's own check \"", condition, "\" failed at ", file, ":",
                      line, ". This is a defect of the library; please report it."));
}

}  // namespace internal
}  // namespace tutti
