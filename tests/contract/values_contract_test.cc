// SPDX-License-Identifier: Apache-2.0
//
// The contract of gather, all_gather, local_results and distribute_values_from_function.

#include <memory>
#include <thread>

#include "tutti/nest/indexed_slices.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::values_contract_test {

using test::bit_equal;
using test::my_id;
using test::tensor;

// Replica i has i + 1 rows of two; element values are all different.
at::Tensor rows(int replica) {
  return at::arange(2 * (replica + 1), at::kDouble).reshape({replica + 1, 2}) + 100 * replica;
}

at::Tensor block(int replica) { return at::arange(6).reshape({2, 3}) + 10 * replica; }

TEST_P(StrategyContract, GatherConcatenatesUnevenRowsInReplicaOrder) {
  const at::Tensor all = strategy().gather(per_replica(rows), 0);
  ASSERT_EQ(all.sizes(), at::IntArrayRef({n() * (n() + 1) / 2, 2}));
  int64_t next = 0;
  for (int r = 0; r < n(); ++r) {
    for (int row = 0; row <= r; ++row, ++next) {
      EXPECT_EQ(all[next][0].item<double>(), 100 * r + 2 * row);
      EXPECT_EQ(all[next][1].item<double>(), 100 * r + 2 * row + 1);
    }
  }
}

TEST_P(StrategyContract, GatherAlongANegativeAxis) {
  const auto columns = per_replica([](int i) { return rows(i).t(); });
  EXPECT_TRUE(bit_equal(strategy().gather(columns, -1), strategy().gather(columns, 1)));
  EXPECT_TRUE(
      bit_equal(strategy().gather(columns, -1).t(), strategy().gather(per_replica(rows), 0)));
}

TEST_P(StrategyContract, GatherTakesNestsMirroredAndEmptyTensors) {
  const auto pairs = per_replica([](int i) {
    return std::pair(rows(i), tensor<int32_t>({i, -i}));
  });
  const auto [all_rows, ids] = strategy().gather(pairs, 0);
  EXPECT_TRUE(bit_equal(all_rows, strategy().gather(per_replica(rows), 0)));
  ASSERT_EQ(ids.size(0), 2 * n());
  for (int i = 0; i < n(); ++i) EXPECT_EQ(ids[2 * i + 1].item<int>(), -i);

  const Mirrored<at::Tensor> mirrored(
      std::vector<at::Tensor>(static_cast<size_t>(n()), tensor({1.0, 2.0})));
  EXPECT_EQ(strategy().gather(mirrored, 0).size(0), 2 * n());

  const auto empty = per_replica([](int i) { return rows(i).slice(0, 0, i == 0 ? 0 : 1); });
  EXPECT_EQ(strategy().gather(empty, 0).size(0), n() - 1);
}

TEST_P(StrategyContract, GatherReturnsAPlainValueAsItIs) {
  const at::Tensor value = tensor({1.0, 2.0});
  EXPECT_TRUE(bit_equal(strategy().gather(value, 0), value));
}

TEST_P(StrategyContract, GatherRefusesWhatCannotBeConcatenated) {
  const auto matrix = per_replica([](int) { return at::ones({2, 3}); });
  EXPECT_TUTTI_ERROR(strategy().gather(matrix, 2), ErrorCode::kInvalidArgument, "Strategy::gather",
                     "axis 2", "float32[2, 3]");
  EXPECT_TUTTI_ERROR(strategy().gather(matrix, -3), ErrorCode::kInvalidArgument, "axis -3");
  const auto scalars = per_replica([](int) { return at::ones({}); });
  EXPECT_TUTTI_ERROR(strategy().gather(scalars, 0), ErrorCode::kInvalidArgument, "rank 1 or more");
  const auto numbers = per_replica([](int i) { return i; });
  EXPECT_TUTTI_ERROR(strategy().gather(numbers, 0), ErrorCode::kInvalidArgument, "local_results");
  const auto slices = per_replica([](int) {
    return IndexedSlices(at::ones({1, 2}), tensor<int64_t>({0}));
  });
  EXPECT_TUTTI_ERROR(strategy().gather(slices, 0), ErrorCode::kUnimplemented,
                     "gather does not support IndexedSlices");
  EXPECT_TUTTI_ERROR(strategy().gather(slices[0], 0), ErrorCode::kUnimplemented,
                     "gather does not support IndexedSlices");
  const auto undefined = per_replica([](int) { return at::Tensor(); });
  EXPECT_TUTTI_ERROR(strategy().gather(undefined, 0), ErrorCode::kInvalidArgument, "undefined");
  if (n() < 2) return;
  EXPECT_TUTTI_ERROR(strategy().gather(per_replica(rows), 1), ErrorCode::kInvalidArgument,
                     "float64[1, 2]", "float64[2, 2]", "axis 1 only");
  const auto ranks = per_replica(
      [](int i) { return at::ones(std::vector<int64_t>(static_cast<size_t>(i) + 1, 1)); });
  EXPECT_TUTTI_ERROR(strategy().gather(ranks, 0), ErrorCode::kInvalidArgument, "float32[1, 1]");
  const auto types =
      per_replica([](int i) { return at::ones({2}, i == 0 ? at::kInt : at::kLong); });
  EXPECT_TUTTI_ERROR(strategy().gather(types, 0), ErrorCode::kInvalidArgument, "int32[2]",
                     "int64[2]");
}

TEST_P(StrategyContract, LocalResultsAreTheComponents) {
  const auto values = per_replica([](int i) { return i * 2; });
  const std::vector<int> results = strategy().local_results(values);
  ASSERT_EQ(results.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i * 2);
}

TEST_P(StrategyContract, LocalResultsMoveOutOfATemporary) {
  std::vector<std::unique_ptr<int>> results =
      strategy().local_results(strategy().run([] { return std::make_unique<int>(my_id()); }));
  ASSERT_EQ(results.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) EXPECT_EQ(*results[static_cast<size_t>(i)], i);
}

TEST_P(StrategyContract, LocalResultsOfMirroredAndPlainValues) {
  std::vector<int> components;
  for (int i = 0; i < n(); ++i) components.push_back(i + 3);
  EXPECT_EQ(strategy().local_results(Mirrored<int>(components)), components);
  EXPECT_EQ(strategy().local_results(std::string("one")), std::vector<std::string>{"one"});
  const int plain = 4;
  EXPECT_EQ(strategy().local_results(plain), std::vector<int>{4});
  const auto owned = strategy().local_results(std::make_unique<int>(5));
  ASSERT_EQ(owned.size(), 1U);
  EXPECT_EQ(*owned[0], 5);
}

TEST_P(StrategyContract, DistributeValuesCallsTheFunctionInReplicaOrderOnThisThread) {
  std::vector<int> order;
  const auto caller = std::this_thread::get_id();
  const auto values = strategy().distribute_values_from_function([&](const ValueContext& context) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(context.num_replicas_in_sync, n());
    order.push_back(context.replica_id_in_sync_group);
    return std::make_unique<int>(context.replica_id_in_sync_group * 4);
  });
  ASSERT_EQ(values.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(order[static_cast<size_t>(i)], i);
    EXPECT_EQ(*values[static_cast<size_t>(i)], i * 4);
  }
}

TEST_P(StrategyContract, DistributedValuesArriveInRun) {
  const auto values = strategy().distribute_values_from_function(
      [](ValueContext context) { return context.replica_id_in_sync_group + 0.5; });
  const auto results = strategy().run([](double x) { return x * 2; }, values);
  for (int i = 0; i < n(); ++i) EXPECT_DOUBLE_EQ(results[static_cast<size_t>(i)], 2 * i + 1);
}

TEST_P(StrategyContract, AllGatherConcatenatesUnevenParts) {
  for (const int64_t axis : {0, -2}) {
    const auto results =
        strategy().run([axis] { return get_replica_context()->all_gather(rows(my_id()), axis); });
    std::vector<at::Tensor> parts;
    for (int i = 0; i < n(); ++i) parts.push_back(rows(i));
    for (const at::Tensor& result : results) EXPECT_TRUE(bit_equal(result, at::cat(parts)));
  }
}

TEST_P(StrategyContract, AllGatherTakesNestsAndEmptyParts) {
  const auto results = strategy().run([] {
    const int id = my_id();
    return get_replica_context()->all_gather(
        std::pair(std::vector<at::Tensor>{block(id), at::full({1, 1}, id % 2 == 0)},
                  at::full({1, id == 0 ? 0 : 2}, id)),
        1);
  });
  std::vector<at::Tensor> first;
  for (int i = 0; i < n(); ++i) first.push_back(block(i));
  for (const auto& [many, last] : results) {
    EXPECT_TRUE(bit_equal(many[0], at::cat(first, 1)));
    EXPECT_EQ(many[1].sizes(), at::IntArrayRef({1, n()}));
    EXPECT_EQ(last.sizes(), at::IntArrayRef({1, 2 * (n() - 1)}));
  }
}

TEST_P(StrategyContract, AllGatherRefusesWhatCannotBeGathered) {
  const auto refuse = [&](const auto& value, int64_t axis) {
    strategy().run([&] { get_replica_context()->all_gather(value, axis); });
  };
  EXPECT_TUTTI_ERROR(refuse(at::ones({}), 0), ErrorCode::kInvalidArgument, "all_gather", "leaf 0");
  EXPECT_TUTTI_ERROR(refuse(at::ones({2}), 1), ErrorCode::kInvalidArgument, "float32[2]", "axis 1");
  EXPECT_TUTTI_ERROR(refuse(at::ones({2}), -2), ErrorCode::kInvalidArgument, "axis -2");
  EXPECT_TUTTI_ERROR(refuse(at::Tensor(), 0), ErrorCode::kInvalidArgument, "all_gather");
  EXPECT_TUTTI_ERROR(refuse(std::pair(at::ones({1}), 2.0), 0), ErrorCode::kInvalidArgument,
                     "leaf 1");
  EXPECT_TUTTI_ERROR(refuse(IndexedSlices(at::ones({1, 1}), tensor<int64_t>({0})), 0),
                     ErrorCode::kUnimplemented, "all_gather does not support IndexedSlices");
}

}  // namespace tutti::values_contract_test
