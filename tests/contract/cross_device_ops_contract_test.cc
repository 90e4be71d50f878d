// SPDX-License-Identifier: Apache-2.0
//
// The implementations that pass the contract, and its first part: dense values from cross-replica
// context.

#include "tests/contract/cross_device_ops_contract.h"

#include <span>

#include "tutti/base/thread.h"
#include "tutti/collectives/hierarchical_copy_all_reduce.h"
#include "tutti/collectives/host_all_reduce.h"
#include "tutti/collectives/nccl/nccl_all_reduce.h"
#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/collectives/reduction_tree.h"

#include "tests/support/expect_error.h"

namespace tutti::cross_device_ops_contract_test {

using test::bit_equal;
using test::cpu_destinations;
using test::expect_mirrored;
using test::expect_own_memory;
using test::expected_tensor;
using test::kAllOps;
using test::kAllTypes;
using test::per_replica;
using test::random_components;
using test::random_tensor;
using test::tensor;

// The minimum that a user must write; reduces contiguous tensors in host memory by the tree.
class UserOps final : public CrossDeviceOps {
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions&) override {
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& each : value) inputs.push_back(each.contiguous());
    const at::ScalarType dtype = inputs[0].scalar_type();
    if (reduced_dtype(op, dtype) != dtype) return reduce_tree(op, inputs);
    at::Tensor result = at::empty_like(inputs[0]);
    std::vector<const void*> pointers;
    for (const at::Tensor& each : inputs) pointers.push_back(each.data_ptr());
    void* const output = result.data_ptr();
    reduce_tree(op, dtype, pointers, std::span<void* const>(&output, 1), 0, result.numel());
    return result;
  }
};

template <class Ops, class... A>
CrossDeviceOpsCase ops_case(const std::string& name, A... args) {
  return {name, [=] { return std::make_shared<Ops>(args...); }};
}

INSTANTIATE_TEST_SUITE_P(
    All, CrossDeviceOpsContract,
    testing::Values(ops_case<HostAllReduce>("HostAllReduce"),
                    ops_case<ReductionToOneDevice>("ReductionToOneDevice"),
                    ops_case<ReductionToOneDevice>("ReductionToCpu1", "CPU:1"),
                    ops_case<HierarchicalCopyAllReduce>("HierarchicalCopy0", 0),
                    ops_case<HierarchicalCopyAllReduce>("HierarchicalCopy1", 1),
                    ops_case<HierarchicalCopyAllReduce>("HierarchicalCopy2", 2),
                    ops_case<HierarchicalCopyAllReduce>("HierarchicalCopy5", 5),
                    ops_case<NcclAllReduce>("NcclOnTheHost", 1), ops_case<UserOps>("UserOps")),
    [](const auto& each) { return each.param.name; });

TEST_P(CrossDeviceOpsContract, ReduceGivesTheBitsOfTheTree) {
  const std::vector<std::vector<int64_t>> shapes = {{}, {0, 3}, {5, 7}, {1031}};
  for (const size_t replicas : {1, 2, 3, 4, 5, 8}) {
    for (const at::ScalarType dtype : kAllTypes) {
      for (size_t s = 0; s < shapes.size(); ++s) {
        const auto components = random_components(replicas, shapes[s], dtype, s);
        for (const ReduceOp op : kAllOps) {
          if (!test::is_reducible(op, dtype)) continue;
          const std::string what =
              message(op, " of ", describe(components[0]), " on ", replicas, " replicas");
          const at::Tensor wanted = expected_tensor(op, components);
          expect_mirrored(ops().reduce(op, per_replica(components), "CPU:0"), 1, wanted, what);
          expect_mirrored(ops().reduce(op, per_replica(components), cpu_destinations(replicas)),
                          replicas, wanted, what);
        }
      }
    }
  }
}

// Views with the same elements as a contiguous tensor of shape {6, 4}.
std::vector<at::Tensor> views_of(const at::Tensor& plain) {
  at::Tensor wide = at::zeros({6, 9}, plain.options());
  wide.narrow(1, 3, 4).copy_(plain);
  at::Tensor every_second = at::zeros({12, 4}, plain.options());
  every_second.slice(0, 0, 12, 2).copy_(plain);
  return {plain.t().contiguous().t(), wide.narrow(1, 3, 4), every_second.slice(0, 0, 12, 2)};
}

TEST_P(CrossDeviceOpsContract, ComponentsMayHaveAnyLayout) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kLong, at::kComplexFloat}) {
    const auto components = random_components(3, {6, 4}, dtype, 1);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      const at::Tensor wanted = expected_tensor(op, components);
      for (size_t v = 0; v < 3; ++v) {
        // First one replica has a different layout than the others, then all have it.
        auto mixed = components;
        mixed[1] = views_of(components[1])[v];
        auto all = components;
        for (at::Tensor& each : all) each = views_of(each)[v];
        for (const auto& given : {mixed, all}) {
          const auto value = per_replica(given);
          expect_mirrored(ops().reduce(op, value, "CPU:0"), 1, wanted, message("view ", v));
          expect_mirrored(ops().reduce(op, value, value), 3, wanted, message("view ", v));
          expect_mirrored(ops().batch_reduce(op, {{value, value}})[0], 3, wanted,
                          message("view ", v));
        }
      }
    }
  }
}

TEST_P(CrossDeviceOpsContract, ViewsThatAreNotYetComputedAreRead) {
  const at::Tensor a = random_tensor({5}, at::kComplexFloat, 1);
  const at::Tensor b = random_tensor({5}, at::kComplexFloat, 2);
  const at::Tensor conj = at::conj(b);
  ASSERT_TRUE(conj.is_conj());
  const at::Tensor wanted = expected_tensor(ReduceOp::kSum, {a, conj.resolve_conj()});
  const auto value = per_replica({a, conj});
  expect_mirrored(ops().reduce(ReduceOp::kSum, value, "CPU:0"), 1, wanted, "one");
  expect_mirrored(ops().reduce(ReduceOp::kSum, value, value), 2, wanted, "own");
}

TEST_P(CrossDeviceOpsContract, ReduceTakesAnyDestinations) {
  const auto components = random_components(3, {9}, at::kFloat, 7);
  const auto value = per_replica(components);
  const at::Tensor wanted = expected_tensor(ReduceOp::kMean, components);
  const auto reduce_to = [&](const Destinations& destinations, size_t size) {
    expect_mirrored(ops().reduce(ReduceOp::kMean, value, destinations), size, wanted,
                    message(size, " destinations"));
  };
  reduce_to("CPU:0", 1);
  reduce_to("/job:localhost/device:CPU:7", 1);
  reduce_to(DeviceSpec::canonical("CPU:2"), 1);
  reduce_to(components[2], 1);
  reduce_to(value, 3);
  reduce_to(Mirrored<at::Tensor>({tensor({1}), tensor({1})}), 2);
  reduce_to(cpu_destinations(2), 2);
  reduce_to(cpu_destinations(7), 7);
}

TEST_P(CrossDeviceOpsContract, ResultsHaveMemoryOfTheirOwn) {
  for (const size_t replicas : {1, 2, 4}) {
    for (const int64_t elements : {int64_t{3}, int64_t{50000}}) {
      auto components = random_components(replicas, {elements}, at::kFloat, 3);
      for (at::Tensor& each : components) each.requires_grad_();
      const auto value = per_replica(components);
      for (const Destinations& destinations :
           {Destinations("CPU:0"), Destinations(value), cpu_destinations(3)}) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
          expect_own_memory(ops().reduce(op, value, destinations), components);
          for (const auto& result :
               ops().batch_reduce(op, {{value, destinations}, {value, destinations}})) {
            expect_own_memory(result, components);
          }
        }
        expect_own_memory(ops().gather(value, destinations, 0), components);
        expect_own_memory(ops().broadcast(components[0], destinations), components);
      }
    }
  }
}

// Tensors of several sizes and types, side by side.
std::vector<std::vector<at::Tensor>> mixed_columns(size_t replicas) {
  const std::vector<std::pair<std::vector<int64_t>, at::ScalarType>> tensors = {
      {{3}, at::kFloat},     {{0}, at::kFloat},         {{70, 30}, at::kFloat},
      {{}, at::kDouble},     {{500}, at::kHalf},        {{40, 5}, at::kInt},
      {{17}, at::kBFloat16}, {{2000}, at::kChar},       {{811}, at::kDouble},
      {{10, 0}, at::kInt},   {{409}, at::kByte},        {{30, 10}, at::kBFloat16},
      {{1}, at::kFloat},     {{33}, at::kComplexFloat}, {{100}, at::kLong}};
  std::vector<std::vector<at::Tensor>> columns;
  for (size_t t = 0; t < tensors.size(); ++t) {
    columns.push_back(random_components(replicas, tensors[t].first, tensors[t].second, t));
  }
  return columns;
}

TEST_P(CrossDeviceOpsContract, BatchReduceKeepsTheOrderWhateverThePacks) {
  for (const size_t replicas : {1, 2, 3, 5}) {
    const auto columns = mixed_columns(replicas);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct}) {
      for (const bool together : {true, false}) {
        std::vector<ReducePair> pairs;
        for (size_t t = 0; t < columns.size(); ++t) {
          const auto value = per_replica(columns[t]);
          // A single different destination is enough to prevent packing.
          pairs.push_back({value, !together && t == 4 ? Destinations("CPU:1") : value});
        }
        for (const int64_t bytes_per_pack : {0, 1, 1000, 1 << 20}) {
          const auto results = ops().batch_reduce(op, pairs, {.bytes_per_pack = bytes_per_pack});
          ASSERT_EQ(results.size(), pairs.size());
          for (size_t t = 0; t < results.size(); ++t) {
            expect_mirrored(results[t], pairs[t].destinations.size(),
                            expected_tensor(op, columns[t]),
                            message(op, ", tensor ", t, ", bytes_per_pack ", bytes_per_pack));
          }
        }
      }
    }
  }
}

TEST_P(CrossDeviceOpsContract, BatchReduceTakesValuesOfDifferentNumbersOfReplicas) {
  const auto two = random_components(2, {4}, at::kFloat, 1);
  const auto three = random_components(3, {4}, at::kFloat, 2);
  const auto results = ops().batch_reduce(
      ReduceOp::kMean, {{per_replica(two), per_replica(two)}, {per_replica(three), "CPU:0"}});
  ASSERT_EQ(results.size(), 2u);
  expect_mirrored(results[0], 2, expected_tensor(ReduceOp::kMean, two), "two");
  expect_mirrored(results[1], 1, expected_tensor(ReduceOp::kMean, three), "three");
}

TEST_P(CrossDeviceOpsContract, AnEmptyBatchIsNothing) {
  EXPECT_TRUE(ops().batch_reduce(ReduceOp::kSum, {}).empty());
}

TEST_P(CrossDeviceOpsContract, BroadcastCopies) {
  for (const at::Tensor& value :
       {random_tensor({3, 4}, at::kFloat, 1), random_tensor({3, 4}, at::kHalf, 1).t(),
        tensor({true, false}), at::empty({0, 2}), test::scalar(3.)}) {
    expect_mirrored(ops().broadcast(value, "CPU:1"), 1, value, "one");
    expect_mirrored(ops().broadcast(value, cpu_destinations(3)), 3, value, "three");
  }
  EXPECT_TUTTI_ERROR(ops().broadcast(at::Tensor(), "CPU:0"), ErrorCode::kInvalidArgument,
                     "CrossDeviceOps::broadcast: the tensor is undefined");
}

TEST_P(CrossDeviceOpsContract, GatherConcatenatesUnevenSizes) {
  // Element (i, j) of replica r is 100 r + 10 i + j.
  const auto part = [](int64_t r, int64_t rows, int64_t columns) {
    at::Tensor result = at::empty({rows, columns}, at::kLong);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        result.data_ptr<int64_t>()[i * columns + j] = 100 * r + 10 * i + j;
      }
    }
    return result;
  };
  const at::Tensor rows = tensor<int64_t>({0, 1, 100, 101, 110, 111}).reshape({3, 2});
  const at::Tensor columns = tensor<int64_t>({0, 100, 101, 10, 110, 111}).reshape({2, 3});
  for (const auto& destinations : {Destinations("CPU:0"), cpu_destinations(3)}) {
    const auto by_rows = per_replica({part(0, 1, 2), part(1, 2, 2), part(2, 0, 2)});
    for (const int64_t axis : {0, -2}) {
      expect_mirrored(ops().gather(by_rows, destinations, axis), destinations.size(), rows, "rows");
    }
    const auto by_columns = per_replica({part(0, 2, 1), part(1, 2, 2)});
    for (const int64_t axis : {1, -1}) {
      expect_mirrored(ops().gather(by_columns, destinations, axis), destinations.size(), columns,
                      "columns");
    }
  }
  const auto transposed = per_replica({part(0, 1, 2).t(), part(1, 2, 2).t()});
  expect_mirrored(ops().gather(transposed, "CPU:0", 1), 1, rows.t(), "views");
  expect_mirrored(ops().gather(per_replica({tensor({true}), tensor({false})}), "CPU:0", 0), 1,
                  tensor({true, false}), "bool");
}

TEST_P(CrossDeviceOpsContract, GatherErrors) {
  const auto gather = [&](std::vector<at::Tensor> parts, int64_t axis) {
    return ops().gather(per_replica(std::move(parts)), "CPU:0", axis);
  };
  EXPECT_TUTTI_ERROR(gather({tensor({1.f}), tensor({2.f})}, 1), ErrorCode::kInvalidArgument,
                     "CrossDeviceOps::gather: axis 1 is out of range for float32[1]");
  EXPECT_TUTTI_ERROR(gather({tensor({1.f}), tensor({2.f})}, -2), ErrorCode::kInvalidArgument,
                     "axis -2 is out of range");
  EXPECT_TUTTI_ERROR(gather({test::scalar(1.f)}, 0), ErrorCode::kInvalidArgument,
                     "axis 0 is out of range for float32[]");
  EXPECT_TUTTI_ERROR(gather({at::zeros({2, 3}), at::zeros({2, 4})}, 0), ErrorCode::kInvalidArgument,
                     "replica 0 has float32[2, 3] but replica 1 has float32[2, 4]",
                     "differ along axis 0 only");
  EXPECT_TUTTI_ERROR(gather({tensor({1.f}), tensor({1.})}, 0), ErrorCode::kInvalidArgument,
                     "replica 1 has float64[1]");
  EXPECT_TUTTI_ERROR(gather({at::zeros({2, 3}), at::zeros({2})}, 0), ErrorCode::kInvalidArgument,
                     "replica 1 has float32[2]");
  EXPECT_TUTTI_ERROR(gather({tensor({1.f}), at::Tensor()}, 0), ErrorCode::kInvalidArgument,
                     "CrossDeviceOps::gather: the component of replica 1 is an undefined tensor");
  EXPECT_TUTTI_ERROR(ops().gather(per_replica({tensor({1.f})}), "CPU:0", 0, {.bytes_per_pack = -1}),
                     ErrorCode::kInvalidArgument, "bytes_per_pack is -1");
}

IndexedSlices slices(std::vector<int64_t> rows, at::ScalarType dtype, uint64_t seed) {
  const auto n = static_cast<int64_t>(rows.size());
  at::Tensor indices = at::empty({n}, at::kLong);
  for (int64_t i = 0; i < n; ++i) indices.data_ptr<int64_t>()[i] = rows[static_cast<size_t>(i)];
  return {random_tensor({n, 3}, dtype, seed), indices, {10, 3}};
}

TEST_P(CrossDeviceOpsContract, SparseValuesAreConcatenated) {
  const PerReplica<IndexedSlices> value(
      {slices({4, 1}, at::kFloat, 1), slices({}, at::kFloat, 2), slices({1, 9, 9}, at::kFloat, 3)});
  const at::Tensor all =
      at::cat({value[0].values(), value[1].values(), value[2].values()}).contiguous();
  at::Tensor mean = at::empty_like(all);
  for (int64_t i = 0; i < all.numel(); ++i) {
    mean.data_ptr<float>()[i] = all.data_ptr<float>()[i] / 3.f;
  }
  for (const Destinations& destinations :
       {Destinations("CPU:0"), Destinations(value), cpu_destinations(2)}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
      const auto result = ops().reduce(op, value, destinations);
      ASSERT_EQ(result.size(), destinations.size());
      std::vector<at::Tensor> values;
      for (const IndexedSlices& each : result) {
        EXPECT_TRUE(bit_equal(each.values(), op == ReduceOp::kMean ? mean : all));
        EXPECT_TRUE(bit_equal(each.indices(), tensor<int64_t>({4, 1, 1, 9, 9})));
        EXPECT_EQ(each.dense_shape(), (std::vector<int64_t>{10, 3}));
        values.push_back(each.values());
      }
      expect_own_memory(Mirrored<at::Tensor>(values),
                        {value[0].values(), value[1].values(), value[2].values()});
    }
  }
}

TEST_P(CrossDeviceOpsContract, OneSparseValueIsCopied) {
  const PerReplica<IndexedSlices> value({slices({4, 1}, at::kFloat, 1)});
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const auto result = ops().reduce(op, value, "CPU:0");
    EXPECT_TRUE(bit_equal(result[0].values(), value[0].values()));
    EXPECT_FALSE(result[0].values().is_alias_of(value[0].values()));
    EXPECT_FALSE(result[0].indices().is_alias_of(value[0].indices()));
  }
}

TEST_P(CrossDeviceOpsContract, SparseMeansOfIntegersAreFloats) {
  const PerReplica<IndexedSlices> value(
      {IndexedSlices(tensor({3, 4}), tensor({0, 1})),
       IndexedSlices(tensor({5}), tensor<int64_t>({int64_t{1} << 40}))});
  const auto mean = ops().reduce(ReduceOp::kMean, value, "CPU:0");
  EXPECT_TRUE(bit_equal(mean[0].values(), tensor({1.5, 2., 2.5})));
  EXPECT_TRUE(bit_equal(mean[0].indices(), tensor<int64_t>({0, 1, int64_t{1} << 40})));
}

TEST_P(CrossDeviceOpsContract, SparseErrors) {
  const auto reduce = [&](ReduceOp op, const IndexedSlices& a, const IndexedSlices& b) {
    return ops().reduce(op, PerReplica<IndexedSlices>({a, b}), "CPU:0");
  };
  const IndexedSlices good = slices({1}, at::kFloat, 1);
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    EXPECT_TUTTI_ERROR(reduce(op, good, good), ErrorCode::kInvalidArgument,
                       "CrossDeviceOps::reduce: IndexedSlices can be reduced by kSum and kMean");
  }
  EXPECT_TUTTI_ERROR(reduce(ReduceOp::kSum, good, slices({1}, at::kDouble, 1)),
                     ErrorCode::kInvalidArgument, "but replica 1 has float64[1, 3]",
                     "Only the number of slices may differ");
  EXPECT_TUTTI_ERROR(reduce(ReduceOp::kSum, good, IndexedSlices(at::zeros({1, 4}), tensor({0}))),
                     ErrorCode::kInvalidArgument, "but replica 1 has float32[1, 4]");
  EXPECT_TUTTI_ERROR(
      reduce(ReduceOp::kSum, good, IndexedSlices(at::zeros({1, 3}), tensor({0}), {11, 3})),
      ErrorCode::kInvalidArgument, "for [11, 3]");
  const IndexedSlices flags(tensor({true}), tensor({0}));
  EXPECT_TUTTI_ERROR(reduce(ReduceOp::kMean, flags, flags), ErrorCode::kInvalidArgument,
                     "values of type bool cannot be reduced by kMean");
}

TEST_P(CrossDeviceOpsContract, DenseErrors) {
  const auto expect_refused = [&](ReduceOp op, std::vector<at::Tensor> components,
                                  std::string_view part) {
    const auto value = per_replica(std::move(components));
    const ReducePair pair{value, "CPU:0"};
    EXPECT_TUTTI_ERROR(ops().reduce(op, value, "CPU:0"), ErrorCode::kInvalidArgument,
                       "CrossDeviceOps::reduce: ", part);
    EXPECT_TUTTI_ERROR(ops().batch_reduce(op, {pair}), ErrorCode::kInvalidArgument,
                       "CrossDeviceOps::batch_reduce: ", part);
  };
  expect_refused(ReduceOp::kSum, {at::Tensor()}, "replica 0 is an undefined tensor");
  expect_refused(ReduceOp::kSum, {tensor({1.f}), at::Tensor()}, "replica 1 is an undefined");
  expect_refused(ReduceOp::kSum, {tensor({1.f}), tensor({1.f, 2.f})},
                 "replica 0 has float32[1] but replica 1 has float32[2]");
  expect_refused(ReduceOp::kSum, {tensor({1.f}), tensor({1.})}, "replica 1 has float64[1]");
  expect_refused(ReduceOp::kSum, {tensor({true}), tensor({true})}, "type bool");
  expect_refused(ReduceOp::kMin, {random_tensor({1}, at::kComplexFloat, 1)}, "no order");
  expect_refused(ReduceOp::kSum, {at::zeros({2, 2}).to_sparse()}, "not a dense tensor");
}

TEST_P(CrossDeviceOpsContract, ImpossibleOptionsAreErrors) {
  const auto value = per_replica({tensor({1.f})});
  const CommunicationOptions bad{.bytes_per_pack = -1};
  EXPECT_TUTTI_ERROR(ops().reduce(ReduceOp::kSum, value, "CPU:0", bad), ErrorCode::kInvalidArgument,
                     "bytes_per_pack is -1");
  EXPECT_TUTTI_ERROR(ops().batch_reduce(ReduceOp::kSum, {}, bad), ErrorCode::kInvalidArgument,
                     "bytes_per_pack is -1");
}

TEST_P(CrossDeviceOpsContract, NoDestinationIsAnError) {
  const auto value = per_replica({tensor({1.f})});
  EXPECT_TUTTI_ERROR(ops().reduce(ReduceOp::kSum, value, ""), ErrorCode::kInvalidArgument,
                     "destinations can not be empty");
  EXPECT_TUTTI_ERROR(ops().reduce(ReduceOp::kSum, value, Destinations(std::vector<DeviceSpec>())),
                     ErrorCode::kInvalidArgument, "destinations can not be empty");
  EXPECT_TUTTI_ERROR(ops().broadcast(value[0], "no device"), ErrorCode::kInvalidArgument,
                     "no device");
  EXPECT_TUTTI_ERROR(ops().broadcast(value[0], "TPU:0"), ErrorCode::kUnimplemented, "TPU:0");
}

TEST_P(CrossDeviceOpsContract, ThreadsMayShareAnObject) {
  std::vector<std::unique_ptr<Thread>> threads;
  for (uint64_t k = 0; k < 3; ++k) {
    threads.push_back(std::make_unique<Thread>("user", [this, k] {
      const auto components = random_components(k + 2, {2000}, at::kFloat, k);
      const auto value = per_replica(components);
      const at::Tensor wanted = expected_tensor(ReduceOp::kMean, components);
      for (int i = 0; i < 20; ++i) {
        expect_mirrored(ops().reduce(ReduceOp::kMean, value, value), k + 2, wanted, "reduce");
        for (const auto& each :
             ops().batch_reduce(ReduceOp::kMean, {{value, "CPU:0"}, {value, value}})) {
          EXPECT_TRUE(bit_equal(each[0], wanted));
        }
        EXPECT_TRUE(bit_equal(ops().gather(value, "CPU:0", 0)[0], at::cat(components)));
      }
    }));
  }
}

}  // namespace tutti::cross_device_ops_contract_test
