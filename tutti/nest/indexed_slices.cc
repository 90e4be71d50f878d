// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/indexed_slices.h"

#include <utility>

#include <ATen/ops/zeros.h>

#include "tutti/base/error.h"

namespace tutti {

IndexedSlices::IndexedSlices(at::Tensor values, at::Tensor indices,
                             std::vector<int64_t> dense_shape)
    : values_(std::move(values)),
      indices_(std::move(indices)),
      dense_shape_(std::move(dense_shape)) {
  if (!values_.defined() || !indices_.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                "IndexedSlices: values or indices is an undefined tensor.");
  }
  const bool integer = indices_.scalar_type() == at::kLong || indices_.scalar_type() == at::kInt;
  if (indices_.dim() != 1 || !integer) {
    throw Error(ErrorCode::kInvalidArgument,
                message("IndexedSlices: indices must be a vector of int32 or int64, not ",
                        indices_.scalar_type(), indices_.sizes(), "."));
  }
  if (values_.dim() < 1 || values_.size(0) != indices_.size(0)) {
    throw Error(ErrorCode::kInvalidArgument,
                message("IndexedSlices: values of shape ", values_.sizes(),
                        " do not have one row for "
                        "each of the ",
                        indices_.size(0), " indices."));
  }
  if (!dense_shape_.empty() && values_.sizes().slice(1) != at::IntArrayRef(dense_shape_).slice(1)) {
    throw Error(ErrorCode::kInvalidArgument,
                message("IndexedSlices: rows of shape ", values_.sizes().slice(1),
                        " do not fit dense_shape ", at::IntArrayRef(dense_shape_), "."));
  }
}

at::Tensor IndexedSlices::to_dense() const {
  if (dense_shape_.empty()) {
    throw Error(ErrorCode::kFailedPrecondition,
                "IndexedSlices::to_dense: the dense shape is unknown. Pass it to the constructor.");
  }
  if (indices_.numel() > 0) {
    const auto lowest = indices_.min().item<int64_t>();
    const auto highest = indices_.max().item<int64_t>();
    if (lowest < 0 || highest >= dense_shape_[0]) {
      throw Error(
          ErrorCode::kInvalidArgument,
          message("IndexedSlices::to_dense: there is no row ", lowest < 0 ? lowest : highest,
                  " in dense_shape ", at::IntArrayRef(dense_shape_),
                  "; its rows are numbered from 0 to ", dense_shape_[0] - 1, "."));
    }
  }
  return at::zeros(dense_shape_, values_.options()).index_add(0, indices_, values_);
}

}  // namespace tutti
