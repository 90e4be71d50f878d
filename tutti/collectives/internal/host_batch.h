// SPDX-License-Identifier: Apache-2.0
//
// Reduces tensors of a batch: those in host memory by the kernels, others by operators.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/device/logical_devices.h"

namespace tutti::internal {

/// Whether the kernels can reduce the tensor: all inputs are in host memory, and the
/// result has their dtype.
inline bool in_host_memory(const AllReduceBatch& batch, size_t tensor) {
  const at::ScalarType dtype = batch.like(tensor).scalar_type();
  if (reduced_dtype(batch.op(), dtype) != dtype) return false;
  // Without a GPU in the process all tensors are here.
  static const bool host_only = list_logical_devices("GPU").empty();
  if (host_only) return true;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    if (!batch.input(r, tensor).device().is_cpu()) return false;
  }
  return true;
}

/// Reduces elements [begin, end) of a tensor in host memory into the outputs of all replicas.
inline void reduce_range(const AllReduceBatch& batch, size_t tensor, int64_t begin, int64_t end) {
  c10::SmallVector<const void*, 8> inputs;
  c10::SmallVector<void*, 8> outputs;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    const AllReduceBatch::Memory memory = batch.memory(r, tensor);
    inputs.push_back(memory.input);
    outputs.push_back(memory.output);
  }
  reduce_tree(batch.op(), batch.like(tensor).scalar_type(),
              std::span<const void* const>(inputs.data(), inputs.size()),
              std::span<void* const>(outputs.data(), outputs.size()), begin, end);
}

/// Reduces a tensor by LibTorch's operators, wherever it lies.
inline void reduce_by_operators(const AllReduceBatch& batch, size_t tensor) {
  std::vector<at::Tensor> inputs;
  for (size_t r = 0; r < batch.replicas(); ++r) inputs.push_back(batch.input(r, tensor));
  const at::Tensor reduced = reduce_tree(batch.op(), inputs);
  for (size_t r = 0; r < batch.replicas(); ++r) batch.output(r, tensor).copy_(reduced);
}

}  // namespace tutti::internal
