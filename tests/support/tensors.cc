// SPDX-License-Identifier: Apache-2.0
//
// Loops over all elements of large tensors. Compiled with a release's flags even for sanitizers:
// they are not what is tested, and would take most of the time.

#include "tests/support/tensors.h"

#include <ATen/ops/empty.h>

#include "tutti/collectives/reduction_tree.h"

#include "tests/support/tree_reference.h"

namespace tutti::test {

at::Tensor random_tensor(at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  at::Tensor result = at::empty(shape, at::TensorOptions().dtype(dtype));
  RandomNumbers random(seed);
  with_type(dtype, [&]<class T>() {
    T* const data = result.data_ptr<T>();
    const int64_t count = result.numel();
    for (int64_t i = 0; i < count; ++i) data[i] = random.of<T>();
  });
  return result;
}

at::Tensor expected_tensor(ReduceOp op, const std::vector<at::Tensor>& components) {
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& each : components) inputs.push_back(each.detach().contiguous());
  const at::ScalarType dtype = inputs[0].scalar_type();
  at::Tensor result =
      at::empty(inputs[0].sizes(), at::TensorOptions().dtype(reduced_dtype(op, dtype)));
  with_type(dtype, [&]<class T>() {
    std::vector<const T*> data;
    for (const at::Tensor& input : inputs) data.push_back(input.data_ptr<T>());
    void* const output = result.data_ptr();
    for (int64_t i = 0; i < result.numel(); ++i) {
      if constexpr (std::is_integral_v<T>) {
        if (op == ReduceOp::kMean) {
          uint64_t bits = 0;  // sums of int64 may wrap
          for (const T* each : data) bits += static_cast<uint64_t>(each[i]);
          const auto sum = static_cast<int64_t>(bits);
          const auto n = static_cast<int64_t>(inputs.size());
          if (result.scalar_type() == at::kDouble) {
            static_cast<double*>(output)[i] = static_cast<double>(sum) / static_cast<double>(n);
          } else {
            static_cast<float*>(output)[i] = static_cast<float>(sum) / static_cast<float>(n);
          }
          continue;
        }
      }
      static_cast<T*>(output)[i] =
          expected_reduction<T>(op, data.size(), [&](size_t r) { return data[r][i]; });
    }
  });
  return result;
}

}  // namespace tutti::test
