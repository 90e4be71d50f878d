// SPDX-License-Identifier: Apache-2.0
//
// The fixture of the suite that every CrossDeviceOps passes whose bits are those of the canonical
// tree. A new implementation is one more line in cross_device_ops_contract_test.cc.

#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/collectives/cross_device_ops.h"

#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti {

struct CrossDeviceOpsCase {
  std::string name;
  std::function<std::shared_ptr<CrossDeviceOps>()> make;
};

inline void PrintTo(const CrossDeviceOpsCase& each, std::ostream* out) { *out << each.name; }

class CrossDeviceOpsContract : public testing::TestWithParam<CrossDeviceOpsCase> {
 protected:
  CrossDeviceOps& ops() const { return *ops_; }

 private:
  std::shared_ptr<CrossDeviceOps> ops_ = GetParam().make();
};

namespace test {

inline constexpr at::ScalarType kAllTypes[] = {
    at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,       at::kChar,         at::kShort,
    at::kInt,  at::kLong,     at::kByte,  at::kComplexFloat, at::kComplexDouble};

inline bool is_reducible(ReduceOp op, at::ScalarType dtype) {
  return !at::isComplexType(dtype) || (op != ReduceOp::kMin && op != ReduceOp::kMax);
}

/// One random tensor for each replica.
inline std::vector<at::Tensor> random_components(size_t replicas, at::IntArrayRef shape,
                                                 at::ScalarType dtype, uint64_t seed) {
  std::vector<at::Tensor> components;
  for (size_t r = 0; r < replicas; ++r) {
    components.push_back(random_tensor(shape, dtype, 1000 * seed + r));
  }
  return components;
}

inline PerReplica<at::Tensor> per_replica(std::vector<at::Tensor> components) {
  return PerReplica<at::Tensor>(std::move(components));
}

/// CPU:0 ... CPU:n-1
inline Destinations cpu_destinations(size_t n) {
  std::vector<DeviceSpec> devices;
  for (size_t i = 0; i < n; ++i) devices.push_back(DeviceSpec::canonical(message("CPU:", i)));
  return Destinations(std::move(devices));
}

/// Every component of `result` is `wanted`.
inline void expect_mirrored(const Mirrored<at::Tensor>& result, size_t size,
                            const at::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(result.size(), size) << what;
  for (const at::Tensor& each : result) ASSERT_TRUE(bit_equal(each, wanted)) << what;
}

/// Writing to one component changes neither another nor an input.
inline void expect_own_memory(const Mirrored<at::Tensor>& result,
                              const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> before;
  for (const at::Tensor& input : inputs) before.push_back(input.detach().clone());
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_FALSE(result[i].requires_grad());
    at::Tensor(result[i]).fill_(static_cast<int64_t>(40 + i));
  }
  for (size_t i = 0; i < result.size(); ++i) {
    EXPECT_TRUE(bit_equal(result[i], at::full_like(result[i], static_cast<int64_t>(40 + i))))
        << "component " << i;
  }
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(bit_equal(inputs[i], before[i])) << i;
}

}  // namespace test
}  // namespace tutti
