// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/internal/components.h"

namespace tutti::internal {

void throw_no_component(const char* class_name, size_t index, size_t size) {
  throw Error(ErrorCode::kInvalidArgument,
              message(class_name, ": there is no component ", index, "; this value has ", size,
                      " (one for each local replica)."));
}

void throw_not_only(size_t size) {
  throw Error(ErrorCode::kFailedPrecondition,
              message("PerReplica::only: there are ", size,
                      " components, not one. Use "
                      "Strategy::reduce, Strategy::local_results or operator[]."));
}

void throw_no_rows() {
  throw Error(
      ErrorCode::kFailedPrecondition,
      "PerReplica::global_rows: the value is not a step of a distributed dataset. Call it on "
      "what the loop over the dataset returned.");
}

void throw_empty(const char* class_name) {
  throw Error(ErrorCode::kInvalidArgument,
              message(class_name, ": there must be at least one component."));
}

}  // namespace tutti::internal
