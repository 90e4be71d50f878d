// SPDX-License-Identifier: Apache-2.0
//
// One tensor from one component per replica, as fast as their memory allows.

#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "tutti/device/arena.h"
#include "tutti/values/reduce_op.h"

namespace tutti::internal {

/// The canonical tree: by the kernels when all components are in host memory, else by
/// LibTorch's operators on the device of the first. Components have equal shapes and
/// dtypes. The result has its own memory, from the arena if it is large.
at::Tensor reduce_components(ReduceOp op, std::span<const at::Tensor> components, Arena& arena);

}  // namespace tutti::internal
