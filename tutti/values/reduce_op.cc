// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/reduce_op.h"

#include <cctype>
#include <string>

#include "tutti/base/error.h"

namespace tutti {

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "kSum";
    case ReduceOp::kMean:
      return "kMean";
    case ReduceOp::kMin:
      return "kMin";
    case ReduceOp::kMax:
      return "kMax";
    case ReduceOp::kProduct:
      return "kProduct";
  }
  return "unknown";
}

ReduceOp parse_reduce_op(std::string_view text) {
  std::string lower;
  for (const unsigned char c : text) lower += static_cast<char>(std::tolower(c));
  if (lower == "sum") return ReduceOp::kSum;
  if (lower == "mean") return ReduceOp::kMean;
  if (lower == "min") return ReduceOp::kMin;
  if (lower == "max") return ReduceOp::kMax;
  if (lower == "product") return ReduceOp::kProduct;
  throw Error(ErrorCode::kInvalidArgument,
              message("parse_reduce_op: \"", text,
                      "\" is not an operation; use sum, mean, min, max or product."));
}

std::ostream& operator<<(std::ostream& out, ReduceOp op) { return out << to_string(op); }

}  // namespace tutti
