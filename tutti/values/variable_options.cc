// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/variable_options.h"

#include "tutti/base/error.h"

namespace tutti {

const char* to_string(VariableSynchronization synchronization) {
  switch (synchronization) {
    case VariableSynchronization::kAuto:
      return "kAuto";
    case VariableSynchronization::kNone:
      return "kNone";
    case VariableSynchronization::kOnWrite:
      return "kOnWrite";
    case VariableSynchronization::kOnRead:
      return "kOnRead";
  }
  return "unknown";
}

const char* to_string(VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::kNone:
      return "kNone";
    case VariableAggregation::kSum:
      return "kSum";
    case VariableAggregation::kMean:
      return "kMean";
    case VariableAggregation::kOnlyFirstReplica:
      return "kOnlyFirstReplica";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization) {
  return out << to_string(synchronization);
}

std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation) {
  return out << to_string(aggregation);
}

ReduceOp to_reduce_op(VariableAggregation aggregation) {
  if (aggregation == VariableAggregation::kSum) return ReduceOp::kSum;
  if (aggregation == VariableAggregation::kMean) return ReduceOp::kMean;
  throw Error(ErrorCode::kInvalidArgument,
              message("to_reduce_op: VariableAggregation::", aggregation,
                      " is not a reduction; only kSum and kMean are."));
}

}  // namespace tutti
