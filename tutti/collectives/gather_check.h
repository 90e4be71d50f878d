// SPDX-License-Identifier: Apache-2.0
//
// Checks which tensors can be concatenated, as check_reducible does for reductions.

#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace tutti {

/// Returns the axis as a non-negative number. Throws kInvalidArgument, beginning with
/// `who`, unless the parts have that axis, one dtype, and shapes that differ along it only.
int64_t check_gatherable(const char* who, std::span<const at::Tensor> parts, int64_t axis);

}  // namespace tutti
