// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/reduce_components.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "tutti/collectives/reduction_tree.h"

namespace tutti::internal {

at::Tensor reduce_components(ReduceOp op, std::span<const at::Tensor> components, Arena& arena) {
  constexpr int64_t kGrainBytes = 256 << 10;
  const at::ScalarType dtype = components[0].scalar_type();
  std::vector<at::Tensor> inputs;
  bool host = reduced_dtype(op, dtype) == dtype;
  for (const at::Tensor& component : components) {
    // The kernels read raw memory, which lacks the effect of a conjugate or negative view.
    inputs.push_back(component.detach().resolve_conj().resolve_neg().contiguous());
    host = host && component.is_cpu();
  }
  if (!host) return reduce_tree(op, inputs);
  at::Tensor result = inputs[0].nbytes() >= kArenaAboveBytes
                          ? arena.empty(inputs[0].sizes(), dtype)
                          : at::empty(inputs[0].sizes(), inputs[0].options());
  std::vector<const void*> pointers;
  for (const at::Tensor& input : inputs) pointers.push_back(input.data_ptr());
  void* const output = result.data_ptr();
  const int64_t grain =
      std::max<int64_t>(1, kGrainBytes / static_cast<int64_t>(result.element_size()));
  at::parallel_for(0, result.numel(), grain, [&](int64_t begin, int64_t end) {
    reduce_tree(op, dtype, pointers, std::span<void* const>(&output, 1), begin, end);
  });
  return result;
}

}  // namespace tutti::internal
