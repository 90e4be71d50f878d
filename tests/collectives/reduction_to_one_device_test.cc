// SPDX-License-Identifier: Apache-2.0
//
// What is special about ReductionToOneDevice: the user's sum. The rest is in the contract suite,
// and its log lines are in tests/process.

#include "tutti/collectives/reduction_to_one_device.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/team.h"
#include "tests/support/tensors.h"

namespace tutti {
namespace {

using test::bit_equal;
using test::tensor;

PerReplica<at::Tensor> three(std::vector<at::Tensor> components) {
  EXPECT_EQ(components.size(), 3u);
  return PerReplica<at::Tensor>(std::move(components));
}

// From the last to the first: (3 + 2) + 1 instead of (1 + 2) + 3.
at::Tensor add_backwards(const std::vector<at::Tensor>& components) {
  at::Tensor sum = components.back().clone();
  for (size_t i = components.size() - 1; i-- > 0;) sum += components[i];
  return sum;
}

TEST(ReductionToOneDevice, UsesTheUsersSumForSumAndMean) {
  ReductionToOneDevice ops({}, add_backwards);
  const auto value = three({tensor({1e8f}), tensor({-1e8f}), tensor({3.f})});
  const float sum = (3.f + -1e8f) + 1e8f;
  ASSERT_NE(sum, (1e8f + -1e8f) + 3.f) << "the order can be seen";
  for (const Destinations& destinations : {Destinations("CPU:0"), Destinations(value)}) {
    for (const at::Tensor& each : ops.reduce(ReduceOp::kSum, value, destinations)) {
      EXPECT_TRUE(bit_equal(each, tensor({sum})));
    }
    for (const at::Tensor& each : ops.reduce(ReduceOp::kMean, value, destinations)) {
      EXPECT_TRUE(bit_equal(each, tensor({sum / 3.f})));
    }
  }
}

TEST(ReductionToOneDevice, IgnoresTheUsersSumForOtherOperations) {
  ReductionToOneDevice ops({}, [](const auto&) -> at::Tensor { throw std::logic_error("called"); });
  const auto value = three({tensor({2.f}), tensor({5.f}), tensor({3.f})});
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kMax, value, "CPU:0")[0], tensor({5.f})));
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kMin, value, "CPU:0")[0], tensor({2.f})));
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kProduct, value, "CPU:0")[0], tensor({30.f})));
  EXPECT_THROW(ops.reduce(ReduceOp::kSum, value, "CPU:0"), std::logic_error)
      << "what it throws passes through";
}

TEST(ReductionToOneDevice, AcceptsASumWiderThanItsInputs) {
  ReductionToOneDevice ops({}, [](const auto& parts) { return at::stack(parts).sum(0); });
  const auto bytes = three({tensor<int8_t>({100}), tensor<int8_t>({100}), tensor<int8_t>({101})});
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kMean, bytes, "CPU:0")[0], tensor({301.f / 3.f})));
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kSum, bytes, "CPU:0")[0], tensor<int8_t>({45})));
  const auto longs = three({tensor<int64_t>({1}), tensor<int64_t>({2}), tensor<int64_t>({2})});
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kMean, longs, "CPU:0")[0], tensor({5. / 3.})));
  ReductionToOneDevice wide(
      {}, [](const auto& parts) { return at::stack(parts).to(at::kDouble).sum(0); });
  const auto value = three({tensor({1e8f}), tensor({1.f}), tensor({-1e8f})});
  EXPECT_TRUE(bit_equal(wide.reduce(ReduceOp::kSum, value, "CPU:0")[0], tensor({1.f})));
}

TEST(ReductionToOneDevice, RefusesASumThatDoesNotFit) {
  const auto value = three({tensor({1.f, 2.f}), tensor({1.f, 2.f}), tensor({1.f, 2.f})});
  const auto expect_refused = [&](const at::Tensor& sum, const char* part) {
    ReductionToOneDevice ops({}, [sum](const auto&) { return sum; });
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      EXPECT_TUTTI_ERROR(ops.reduce(op, value, "CPU:0"), ErrorCode::kInvalidArgument,
                         "ReductionToOneDevice: accumulation_fn returned ", part,
                         "for 3 components of float32[2]",
                         "it must return their sum, a tensor of the same shape");
    }
    test::TensorGrid grid = {{value[0]}, {value[1]}, {value[2]}};
    EXPECT_TUTTI_ERROR(test::all_reduce(ops, ReduceOp::kSum, grid, grid),
                       ErrorCode::kInvalidArgument, part);
  };
  expect_refused(at::Tensor(), "undefined tensor");
  expect_refused(tensor({1.f}), "float32[1]");
  expect_refused(at::zeros({2}, at::kComplexFloat), "complex64[2]");
}

TEST(ReductionToOneDevice, CopiesAComponentReturnedAsTheSum) {
  ReductionToOneDevice ops({}, [](const auto& parts) { return parts[1]; });
  const auto value = three({tensor({1.f}), tensor({2.f}), tensor({3.f})});
  for (const Destinations& destinations : {Destinations("CPU:0"), Destinations(value)}) {
    for (const at::Tensor& each : ops.reduce(ReduceOp::kSum, value, destinations)) {
      EXPECT_TRUE(bit_equal(each, tensor({2.f})));
      EXPECT_FALSE(each.is_alias_of(value[1]));
    }
  }
  test::TensorGrid grid = {{value[0]}, {value[1]}, {value[2]}};
  test::all_reduce(ops, ReduceOp::kSum, grid, grid, {}, {.members = 3, .threads = true});
  for (const auto& row : grid) EXPECT_TRUE(bit_equal(row[0], tensor({2.f})));
}

TEST(ReductionToOneDevice, PassesAllComponentsInOrderToTheUsersSum) {
  std::vector<std::vector<float>> seen;
  ReductionToOneDevice ops("CPU:2", [&](const std::vector<at::Tensor>& parts) {
    auto& values = seen.emplace_back();
    for (const at::Tensor& part : parts) {
      values.push_back(part.item<float>());
      EXPECT_FALSE(part.requires_grad());
    }
    return at::stack(parts).sum(0);
  });
  std::vector<at::Tensor> components = {tensor({1.f}), tensor({2.f}), tensor({4.f})};
  for (at::Tensor& each : components) each.requires_grad_();
  const auto value = three(components);
  const auto sum = ops.reduce(ReduceOp::kSum, value, value);
  EXPECT_EQ(seen, (std::vector<std::vector<float>>{{1, 2, 4}})) << "once for all destinations";
  EXPECT_TRUE(bit_equal(sum[2], tensor({7.f})));
}

TEST(ReductionToOneDevice, RefusesANameThatIsNotADevice) {
  EXPECT_TUTTI_ERROR(ReductionToOneDevice(""), ErrorCode::kInvalidArgument,
                     "ReductionToOneDevice: reduce_to_device is empty");
  EXPECT_TUTTI_ERROR(ReductionToOneDevice("CPU:x"), ErrorCode::kInvalidArgument, "CPU:x");
  EXPECT_TUTTI_ERROR(ReductionToOneDevice("TPU:0"), ErrorCode::kUnimplemented, "TPU:0");
}

}  // namespace
}  // namespace tutti
