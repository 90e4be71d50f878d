// SPDX-License-Identifier: Apache-2.0
//
// How a variable's copies on the replicas are kept consistent.

#pragma once

#include <optional>
#include <ostream>
#include <string>

#include <c10/core/ScalarType.h>

#include "tutti/values/reduce_op.h"

namespace tutti {

/// When the copies are made to agree.
enum class VariableSynchronization {
  kAuto,     ///< The strategy decides: kOnWrite if there are several copies.
  kNone,     ///< There is one copy; only for strategies that keep one.
  kOnWrite,  ///< Every write changes all copies in the same way.
  kOnRead,   ///< Replicas write their own copies; a read from outside combines them.
};

/// How the values of several replicas become one.
enum class VariableAggregation { kNone, kSum, kMean, kOnlyFirstReplica };

/// "kOnRead", ...
const char* to_string(VariableSynchronization synchronization);
const char* to_string(VariableAggregation aggregation);

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization);
std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation);

/// kSum and kMean as a ReduceOp; throws kInvalidArgument for the others.
ReduceOp to_reduce_op(VariableAggregation aggregation);

struct VariableOptions {
  /// Copy i > 0 is called "<name>/replica_<i>".
  std::string name = "Variable";

  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;

  /// Whether the copies require a gradient; if not set, they do unless they synchronise on read.
  std::optional<bool> trainable = std::nullopt;

  /// The initial value is converted to this type; if not set, the variable takes the value's type.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

/// For assign() and its relatives.
struct AssignOptions {
  /// Whether the new value is returned; without it the result is an undefined tensor.
  /// Outside of a replica the value is a copy, which is worth avoiding for large variables.
  bool read_value = true;
};

}  // namespace tutti
