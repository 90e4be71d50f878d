// SPDX-License-Identifier: Apache-2.0
//
// How values of several replicas become one.

#pragma once

#include <ostream>
#include <string_view>

namespace tutti {

enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct };

/// "kSum", ...
const char* to_string(ReduceOp op);

/// Reads "sum", "mean", "min", "max" or "product" in any case; throws
/// kInvalidArgument for anything else.
ReduceOp parse_reduce_op(std::string_view text);

std::ostream& operator<<(std::ostream& out, ReduceOp op);

}  // namespace tutti
