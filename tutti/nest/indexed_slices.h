// SPDX-License-Identifier: Apache-2.0
//
// A sparse update: some rows of a larger tensor. Reducing slices over replicas
// concatenates them in replica order; duplicate rows are kept.

#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tutti {

/// values[i] belongs to row indices[i] of a tensor of shape dense_shape (empty
/// when it is not known). A plain value; tensors are shared, not copied.
class IndexedSlices {
 public:
  /// Throws kInvalidArgument unless `indices` is a vector of int32 or int64 and
  /// `values` has one row for each of them.
  IndexedSlices(at::Tensor values, at::Tensor indices, std::vector<int64_t> dense_shape = {});

  const at::Tensor& values() const { return values_; }
  const at::Tensor& indices() const { return indices_; }
  const std::vector<int64_t>& dense_shape() const { return dense_shape_; }

  /// The sum of the slices as one tensor of shape dense_shape.
  at::Tensor to_dense() const;

 private:
  at::Tensor values_;
  at::Tensor indices_;
  std::vector<int64_t> dense_shape_;
};

}  // namespace tutti
