// SPDX-License-Identifier: Apache-2.0
//
// Spellings of calls that TensorFlow programs use, and what must not affect later calls.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace tutti::accepted_calls_test {
namespace {

std::vector<std::string> cpus(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("CPU:" + std::to_string(i));
  return names;
}

int id() { return get_replica_context()->replica_id_in_sync_group(); }

at::Tensor of_replica(int replica) { return at::full({2}, replica + 1.0); }

TEST(AcceptedCalls, MergeCallTakesStringLiterals) {
  const MirroredStrategy strategy(cpus(2));
  const auto lengths = strategy.run([] {
    return get_replica_context()->merge_call(
        [](const Strategy&, const PerReplica<const char*>& words, const PerReplica<int>& numbers) {
          return std::string(words[0]) + words[1] + std::to_string(numbers[0] + numbers[1]);
        },
        "bar", id() + 1);
  });
  EXPECT_EQ(lengths[0], "barbar3");
  EXPECT_EQ(lengths[1], "barbar3");
}

TEST(AcceptedCalls, ReduceTakesNulloptForNoAxis) {
  const MirroredStrategy strategy(cpus(2));
  const auto values = strategy.run([] { return of_replica(id()); });
  EXPECT_TRUE(at::equal(strategy.reduce(ReduceOp::kSum, values, std::nullopt), at::full({2}, 3.0)));
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, values, 0).item<double>(), 6.0);
}

TEST(AcceptedCalls, ReplicasReduceAndGatherTheirCopiesOfAVariable) {
  const MirroredStrategy strategy(cpus(2));
  const Variable v = strategy.scope([] {
    return Variable(at::zeros({2}), {.synchronization = VariableSynchronization::kOnRead,
                                     .aggregation = VariableAggregation::kSum});
  });
  strategy.run([&] { v.assign(of_replica(id())); });
  const auto sums =
      strategy.run([&] { return get_replica_context()->all_reduce(ReduceOp::kSum, v); });
  const auto all = strategy.run([&] { return get_replica_context()->all_gather(v, 0); });
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(sums[i], at::full({2}, 3.0)));
    EXPECT_TRUE(at::equal(all[i], at::cat({of_replica(0), of_replica(1)})));
    EXPECT_TRUE(at::equal(v.components()[i], of_replica(static_cast<int>(i)))) << "unchanged";
  }
}

TEST(AcceptedCalls, BatchReduceToTakesABracedList) {
  const MirroredStrategy strategy(cpus(2));
  const auto a = strategy.run([] { return of_replica(id()); });
  const auto b = strategy.run([] { return of_replica(10 * id()); });
  const auto sums = strategy.extended().batch_reduce_to(ReduceOp::kSum, {{a, "CPU:0"}, {b, b}});
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_TRUE(at::equal(sums[0][0], at::full({2}, 3.0)));
  ASSERT_EQ(sums[1].size(), 2U);
  EXPECT_TRUE(at::equal(sums[1][1], at::full({2}, 12.0)));
}

TEST(AcceptedCalls, BatchReduceToCallsItselfByItsName) {
  const MirroredStrategy strategy(cpus(2));
  const auto undefined = strategy.run([] { return at::Tensor(); });
  StrategyExtended& extended = strategy.extended();
  EXPECT_TUTTI_ERROR(extended.batch_reduce_to(ReduceOp::kSum, {{undefined, "CPU:0"}}),
                     ErrorCode::kInvalidArgument, "extended().batch_reduce_to:");
  EXPECT_TUTTI_ERROR(extended.reduce_to(ReduceOp::kSum, undefined, "CPU:0"),
                     ErrorCode::kInvalidArgument, "extended().reduce_to:");
}

TEST(AcceptedCalls, GatherOfDifferentTypesSaysSo) {
  const MirroredStrategy strategy(cpus(2));
  const auto mixed = strategy.run([] { return at::ones({2}, id() == 0 ? at::kFloat : at::kLong); });
  EXPECT_TUTTI_ERROR(strategy.gather(mixed, 0), ErrorCode::kInvalidArgument, "float32[2]",
                     "int64[2]", "Convert them to one type first.");
}

TEST(AcceptedCalls, StrategiesOfDifferentSizeLiveInOneProcess) {
  const MirroredStrategy small(cpus(2));
  const MirroredStrategy large(cpus(4));
  for (int round = 0; round < 3; ++round) {
    for (const MirroredStrategy& strategy : {small, large}) {
      const int n = strategy.num_replicas_in_sync();
      const auto sums = strategy.run(
          [] { return get_replica_context()->all_reduce(ReduceOp::kSum, of_replica(id())); });
      const auto all =
          strategy.run([] { return get_replica_context()->all_gather(of_replica(id()), 0); });
      EXPECT_TRUE(at::equal(sums[static_cast<size_t>(n - 1)], at::full({2}, n * (n + 1) / 2.0)));
      EXPECT_EQ(all[0].size(0), 2 * n);
    }
  }
}

TEST(AcceptedCalls, AGatherWorksAfterOneThatFailed) {
  const MirroredStrategy strategy(cpus(2));
  for (int round = 0; round < 3; ++round) {
    EXPECT_TUTTI_ERROR(strategy.run([] {
      return get_replica_context()->all_gather(at::ones({1, 2 + id()}), 0);
    }),
                       ErrorCode::kInvalidArgument, "float32[1, 2]", "float32[1, 3]");
    const auto uneven = strategy.run([] { return at::ones({2 + id()}); });
    EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kSum, uneven), ErrorCode::kInvalidArgument,
                       "float32[3]");
    EXPECT_EQ(strategy.gather(uneven, 0).size(0), 5);
    const auto all = strategy.run([] {
      return get_replica_context()->all_gather(at::ones({1 + id(), 2}), 0);
    });
    EXPECT_TRUE(at::equal(all[1], at::ones({3, 2})));
  }
}

}  // namespace
}  // namespace tutti::accepted_calls_test
