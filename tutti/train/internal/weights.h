// SPDX-License-Identifier: Apache-2.0
//
// Weights of examples, for losses and metrics.

#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace tutti::internal {

/// Returns the weights as constants in the shape of `values`; nothing is copied. Throws
/// kInvalidArgument, in the name of `who`, for weights that are not dense numbers or booleans
/// or do not broadcast to that shape. `what` says what the values are: "the loss".
at::Tensor broadcast_weights(std::string_view who, const at::Tensor& weights, std::string_view what,
                             const at::Tensor& values);

/// Throws kInvalidArgument, in the name of `who`, unless `per_example` can be one loss for each
/// example: it must be a dense floating-point tensor and, on several replicas, have dimensions
/// unless its weight has none either.
void check_per_example(const char* who, const at::Tensor& per_example,
                       const std::optional<at::Tensor>& weights, int replicas);

}  // namespace tutti::internal
