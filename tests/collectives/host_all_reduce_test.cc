// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/host_all_reduce.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tutti/collectives/reduction_tree.h"

#include "tests/support/expect_error.h"
#include "tests/support/team.h"
#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti {
namespace {

using test::bit_equal;
using test::random_tensor;
using test::tensor;
using Grid = test::TensorGrid;

at::Tensor plain_loop(ReduceOp op, const Grid& inputs, size_t t) {
  std::vector<at::Tensor> column;
  for (const auto& replica : inputs) column.push_back(replica[t]);
  return test::expected_tensor(op, column);
}

Grid make_inputs(size_t replicas, const std::vector<std::pair<int64_t, at::ScalarType>>& tensors) {
  Grid grid(replicas);
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      grid[r].push_back(random_tensor({tensors[t].first}, tensors[t].second, 100 * t + r));
    }
  }
  return grid;
}

Grid clone(const Grid& grid) {
  Grid copy = grid;
  for (auto& row : copy) {
    for (auto& each : row) each = each.clone();
  }
  return copy;
}

Grid empty_outputs(ReduceOp op, const Grid& inputs) {
  Grid outputs = inputs;
  for (auto& row : outputs) {
    for (auto& each : row) {
      each =
          at::empty(each.sizes(), at::TensorOptions().dtype(reduced_dtype(op, each.scalar_type())));
    }
  }
  return outputs;
}

void expect_outputs(ReduceOp op, const Grid& inputs, const Grid& outputs) {
  for (size_t t = 0; t < inputs[0].size(); ++t) {
    const at::Tensor wanted = plain_loop(op, inputs, t);
    for (size_t r = 0; r < inputs.size(); ++r) {
      ASSERT_TRUE(bit_equal(outputs[r][t], wanted)) << op << ", replica " << r << ", tensor " << t;
    }
  }
}

// Sizes range from nothing to several chunks, with different dtypes side by side.
const std::vector<std::pair<int64_t, at::ScalarType>> kMixed = {
    {3, at::kFloat},         {0, at::kFloat},     {100000, at::kFloat},
    {1, at::kDouble},        {5000, at::kHalf},   {40000, at::kInt},
    {17, at::kBFloat16},     {200000, at::kChar}, {8191, at::kDouble},
    {1000, at::kLong},       {0, at::kInt},       {4096, at::kByte},
    {30000, at::kBFloat16},  {12, at::kShort},    {9000, at::kComplexFloat},
    {70, at::kComplexDouble}};

TEST(HostAllReduce, ReducesManyTensorsOfMixedSizesAndTypes) {
  HostAllReduce ops;
  for (const size_t replicas : {1, 2, 3, 4, 5, 8}) {
    const Grid inputs = make_inputs(replicas, kMixed);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct}) {
      for (const bool threads : {false, true}) {
        Grid given = clone(inputs);
        Grid outputs = empty_outputs(op, inputs);
        test::all_reduce(ops, op, given, outputs, {}, {.members = replicas, .threads = threads});
        expect_outputs(op, inputs, outputs);
        for (size_t r = 0; r < replicas; ++r) {
          for (size_t t = 0; t < kMixed.size(); ++t) {
            ASSERT_TRUE(bit_equal(given[r][t], inputs[r][t])) << "inputs are left alone";
          }
        }
      }
    }
  }
}

TEST(HostAllReduce, ReducesInPlace) {
  HostAllReduce ops;
  for (const size_t replicas : {2, 3, 4, 6}) {
    const Grid inputs =
        make_inputs(replicas, {{400000, at::kFloat}, {7, at::kDouble}, {300, at::kHalf}});
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax}) {
      Grid values = clone(inputs);
      test::all_reduce(ops, op, values, values, {}, {.members = replicas, .threads = true});
      expect_outputs(op, inputs, values);
    }
  }
}

TEST(HostAllReduce, GivesTheSameBitsForEveryPackSize) {
  HostAllReduce ops;
  const Grid inputs = make_inputs(3, kMixed);
  for (const int64_t bytes_per_pack : {1, 100, 4096, 20000, 65536, 1 << 20, 1 << 30}) {
    Grid given = clone(inputs);
    Grid outputs = empty_outputs(ReduceOp::kSum, inputs);
    test::all_reduce(ops, ReduceOp::kSum, given, outputs, {.bytes_per_pack = bytes_per_pack},
                     {.members = 3, .threads = true});
    expect_outputs(ReduceOp::kSum, inputs, outputs);
  }
}

TEST(HostAllReduce, GivesTheSameBitsWithOneThreadForAllReplicas) {
  HostAllReduce ops;
  for (const int64_t elements : {1, 123457, 500000}) {
    const Grid inputs =
        make_inputs(5, {{elements, at::kFloat}, {999, at::kFloat}, {elements, at::kHalf}});
    for (const size_t members : {1, 5}) {
      Grid given = clone(inputs);
      Grid outputs = empty_outputs(ReduceOp::kMean, inputs);
      test::all_reduce(ops, ReduceOp::kMean, given, outputs, {}, {.members = members});
      expect_outputs(ReduceOp::kMean, inputs, outputs);
    }
  }
}

TEST(HostAllReduce, ReducesManySmallTensorsInAnyPacks) {
  HostAllReduce ops;
  const Grid inputs =
      make_inputs(2, std::vector<std::pair<int64_t, at::ScalarType>>(100, {256, at::kFloat}));
  for (const int64_t bytes_per_pack : {0, 1, 1024, 5000}) {
    Grid given = clone(inputs);
    Grid outputs = empty_outputs(ReduceOp::kSum, inputs);
    test::all_reduce(ops, ReduceOp::kSum, given, outputs, {.bytes_per_pack = bytes_per_pack},
                     {.members = 2, .threads = true});
    expect_outputs(ReduceOp::kSum, inputs, outputs);
  }
}

TEST(HostAllReduce, ReduceUsesTheSameTree) {
  HostAllReduce ops;
  for (const size_t replicas : {1, 2, 5, 9}) {
    const Grid inputs = make_inputs(replicas, kMixed);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      for (size_t t = 0; t < kMixed.size(); ++t) {
        std::vector<at::Tensor> components;
        for (const auto& row : inputs) components.push_back(row[t]);
        const at::Tensor first = components[0].clone();
        const at::Tensor result =
            ops.reduce(op, PerReplica<at::Tensor>(std::move(components)), "CPU:0")[0];
        ASSERT_TRUE(bit_equal(result, plain_loop(op, inputs, t))) << op << ' ' << t;
        ASSERT_TRUE(bit_equal(inputs[0][t], first)) << "inputs are left alone";
        if (result.numel() > 0) {
          ASSERT_NE(result.data_ptr(), inputs[0][t].data_ptr());
        }
      }
    }
  }
}

TEST(HostAllReduce, ReduceAcceptsTensorsInAnyLayout) {
  HostAllReduce ops;
  const at::Tensor a = random_tensor({30, 40}, at::kDouble, 1);
  const at::Tensor b = random_tensor({40, 30}, at::kDouble, 2);
  const at::Tensor result = ops.reduce(
      ReduceOp::kSum, PerReplica<at::Tensor>(std::vector{a.t(), b.requires_grad_()}), "CPU:0")[0];
  ASSERT_EQ(result.sizes(), (at::IntArrayRef{40, 30}));
  EXPECT_FALSE(result.requires_grad());
  const double* x = a.data_ptr<double>();
  const double* y = b.data_ptr<double>();
  for (int64_t i = 0; i < 40; ++i) {
    for (int64_t j = 0; j < 30; ++j) {
      ASSERT_EQ(result.data_ptr<double>()[i * 30 + j], x[j * 40 + i] + y[i * 30 + j]);
    }
  }
}

TEST(HostAllReduce, ReusesLargeResultsFromTheArena) {
  const auto arena = std::make_shared<HeapArena>();
  HostAllReduce ops(arena);
  const PerReplica<at::Tensor> value(
      std::vector{random_tensor({100000}, at::kFloat, 1), random_tensor({100000}, at::kFloat, 2)});
  for (const Destinations& destinations : {Destinations("CPU:0"), Destinations(value)}) {
    ops.reduce(ReduceOp::kSum, value, destinations);
    const size_t reserved = arena->reserved_bytes();
    EXPECT_GE(reserved, 400000u * destinations.size());
    for (int i = 0; i < 5; ++i) ops.reduce(ReduceOp::kSum, value, destinations);
    EXPECT_EQ(arena->reserved_bytes(), reserved);
  }
}

}  // namespace
}  // namespace tutti
