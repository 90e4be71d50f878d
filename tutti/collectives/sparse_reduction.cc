// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/sparse_reduction.h"

#include <algorithm>

#include <ATen/ops/cat.h>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/nest/leaf.h"

namespace tutti {

IndexedSlices concatenate_slices(const char* who, ReduceOp op,
                                 const std::vector<const IndexedSlices*>& parts) {
  if (op != ReduceOp::kSum && op != ReduceOp::kMean) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": IndexedSlices can be reduced by kSum and kMean, not by ", op,
                        ". Use to_dense() first."));
  }
  const IndexedSlices& first = *parts[0];
  if (op == ReduceOp::kMean) check_reducible(who, op, first.values().scalar_type());
  // int32 cannot hold every int64.
  const bool wide = std::any_of(parts.begin(), parts.end(), [](const IndexedSlices* part) {
    return part->indices().scalar_type() == at::kLong;
  });
  const at::ScalarType index_type = wide ? at::kLong : at::kInt;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> indices;
  for (size_t i = 0; i < parts.size(); ++i) {
    const IndexedSlices& part = *parts[i];
    if (part.values().scalar_type() != first.values().scalar_type() ||
        part.values().sizes().slice(1) != first.values().sizes().slice(1) ||
        part.dense_shape() != first.dense_shape()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          message(who, ": replica 0 has slices of ", describe(first.values()),
                  " for a tensor of shape ", at::IntArrayRef(first.dense_shape()), " but replica ",
                  i, " has ", describe(part.values()), " for ", at::IntArrayRef(part.dense_shape()),
                  ". Only the number of slices may differ."));
    }
    values.push_back(part.values().detach().to(first.values().device()));
    indices.push_back(part.indices().to(first.values().device(), index_type));
  }
  at::Tensor all = at::cat(values, 0);
  if (op == ReduceOp::kMean) {
    all = divide_sum(all, static_cast<int64_t>(parts.size()), all.scalar_type());
  }
  return {all, at::cat(indices, 0), first.dense_shape()};
}

}  // namespace tutti
