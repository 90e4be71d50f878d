// SPDX-License-Identifier: Apache-2.0
//
// Which tensors can be concatenated; what check_reducible is to reductions.

#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

namespace tutti {

/// The axis as a number that is not negative. Throws kInvalidArgument, beginning with
/// `who`, unless the parts have that axis, one dtype, and shapes that differ along it only.
int64_t check_gatherable(const char* who, std::span<const at::Tensor> parts, int64_t axis);

}  // namespace tutti
