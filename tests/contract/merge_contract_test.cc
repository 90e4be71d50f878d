// SPDX-License-Identifier: Apache-2.0
//
// The contract of merge_call, and of contexts used in the wrong place.

#include <atomic>
#include <memory>
#include <thread>

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::merge_contract_test {

using test::my_id;

TEST_P(StrategyContract, MergeCallGetsTheArgumentsOfAllReplicasOnce) {
  std::atomic<int> calls = 0;
  strategy().run([&] {
    get_replica_context()->merge_call(
        [&](const Strategy& current, const PerReplica<int>& ids,
            const PerReplica<std::string>& names) {
          calls.fetch_add(1);
          EXPECT_TRUE(current == strategy());
          ASSERT_EQ(ids.size(), static_cast<size_t>(n()));
          for (int i = 0; i < n(); ++i) {
            EXPECT_EQ(ids[static_cast<size_t>(i)], i);
            EXPECT_EQ(names[static_cast<size_t>(i)], "r" + std::to_string(i));
          }
        },
        my_id(), "r" + std::to_string(my_id()));
  });
  EXPECT_EQ(calls.load(), 1);
}

TEST_P(StrategyContract, MergeCallHandsOutPerReplicaResultsByComponent) {
  const auto results = strategy().run([] {
    return get_replica_context()->merge_call(
        [](const Strategy&, const PerReplica<int>& ids) {
          return ids.map([](int id) { return id * 11; });
        },
        my_id());
  });
  static_assert(std::is_same_v<decltype(results), const PerReplica<int>>);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i * 11);
}

TEST_P(StrategyContract, MergeCallHandsOutMoveOnlyComponents) {
  const auto results = strategy().run([this] {
    const std::unique_ptr<int> mine = get_replica_context()->merge_call([this](const Strategy&) {
      return per_replica([](int i) { return std::make_unique<int>(i + 1); });
    });
    return *mine;
  });
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i + 1);
}

TEST_P(StrategyContract, MergeCallHandsOutMirroredAndPlainResults) {
  const auto results = strategy().run([this] {
    ReplicaContext* context = get_replica_context();
    const int mirrored = context->merge_call([this](const Strategy&) {
      std::vector<int> components;
      for (int i = 0; i < n(); ++i) components.push_back(i + 30);
      return Mirrored<int>(components);
    });
    const std::string plain =
        context->merge_call([](const Strategy&) { return std::string("for all"); });
    return std::pair(mirrored, plain);
  });
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(results[static_cast<size_t>(i)], std::pair(i + 30, std::string("for all")));
  }
}

TEST_P(StrategyContract, MergeFunctionsMayReduceAndGather) {
  const auto results = strategy().run([] {
    const at::Tensor mine = at::full({1}, my_id() + 1, at::kDouble);
    return get_replica_context()->merge_call(
        [](const Strategy& current, const PerReplica<at::Tensor>& values) {
          const Scope scope = current.scope();
          return std::pair(current.reduce(ReduceOp::kSum, values), current.gather(values, 0));
        },
        mine);
  });
  for (const auto& [sum, all] : results) {
    EXPECT_DOUBLE_EQ(sum.item<double>(), n() * (n() + 1) / 2);
    EXPECT_TRUE(at::equal(all, at::arange(1, n() + 1, at::kDouble)));
  }
}

TEST_P(StrategyContract, MergeCallsKeepTheirOrder) {
  const auto sums = strategy().run([] {
    int total = 0;
    for (int step = 0; step < 50; ++step) {
      total += get_replica_context()->merge_call(
          [step](const Strategy&, const PerReplica<int>& values) {
            int sum = 0;
            for (const int value : values) sum += value;
            return sum * step;
          },
          my_id() + 1);
    }
    return total;
  });
  for (const int sum : sums) EXPECT_EQ(sum, n() * (n() + 1) / 2 * (49 * 50 / 2));
}

TEST_P(StrategyContract, AnExceptionOfTheMergeFunctionLeavesRunWithItsType) {
  std::atomic<int> after = 0;
  EXPECT_THROW(strategy().run([&] {
    get_replica_context()->merge_call(
        [](const Strategy&) { throw std::out_of_range("from merge_fn"); });
    after.fetch_add(1);
  }),
               std::out_of_range);
  EXPECT_EQ(after.load(), 0);
  EXPECT_EQ(strategy().run([] { return my_id(); }).size(), static_cast<size_t>(n()));
}

TEST_P(StrategyContract, OperationsOfAReplicaInsideAMergeFunctionAreErrors) {
  strategy().run([] {
    ReplicaContext* context = get_replica_context();
    context->merge_call([context](const Strategy&) {
      EXPECT_TUTTI_ERROR(context->all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                         "all_reduce", "cross-replica context");
      EXPECT_TUTTI_ERROR(context->merge_call([](const Strategy&) {}),
                         ErrorCode::kFailedPrecondition, "merge_call", "cross-replica context");
    });
  });
}

TEST_P(StrategyContract, OperationsOnTheContextOfAnotherReplicaAreErrors) {
  if (n() < 2) return;  // There is only one replica.
  strategy().run([&] {
    ReplicaContext& other = strategy().extended().replica_context((my_id() + 1) % n());
    EXPECT_TUTTI_ERROR(other.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                       "the context of replica " + std::to_string((my_id() + 1) % n()),
                       "in replica " + std::to_string(my_id()));
  });
}

TEST_P(StrategyContract, OperationsOutsideOfRunAreErrors) {
  if (GetParam().is_default) return;  // Its replica is everywhere; see DefaultStrategy.
  ReplicaContext& context = strategy().extended().replica_context(0);
  EXPECT_TUTTI_ERROR(context.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                     "outside Strategy::run");
  EXPECT_TUTTI_ERROR(context.all_gather(at::ones({1}), 0), ErrorCode::kFailedPrecondition,
                     "outside Strategy::run");
  EXPECT_TUTTI_ERROR(context.merge_call([](const Strategy&) {}), ErrorCode::kFailedPrecondition,
                     "outside Strategy::run");
  const auto entered = context.enter();
  EXPECT_TUTTI_ERROR(context.all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                     "function is not running");
}

TEST_P(StrategyContract, AThreadStartedInRunHasNoContextUntilItEnters) {
  const auto results = strategy().run([&] {
    ReplicaContext* context = get_replica_context();
    int sum = 0;
    std::thread([&] {
      EXPECT_FALSE(has_strategy());
      EXPECT_EQ(get_replica_context()->num_replicas_in_sync(), 1);
      if (!GetParam().is_default) {
        EXPECT_TUTTI_ERROR(context->all_reduce(ReduceOp::kSum, 1), ErrorCode::kFailedPrecondition,
                           "enter()");
      }
      {
        const auto entered = context->enter();
        EXPECT_EQ(get_replica_context(), context);
        EXPECT_EQ(has_strategy(), !GetParam().is_default);
        EXPECT_FALSE(in_cross_replica_context());
        sum = context->all_reduce(ReduceOp::kSum, context->replica_id_in_sync_group() + 1);
      }
      EXPECT_FALSE(has_strategy());
    }).join();
    return sum;
  });
  for (const int sum : results) EXPECT_EQ(sum, n() * (n() + 1) / 2);
}

TEST(DefaultStrategy, ItsContextWorksInAPlainProgram) {
  ReplicaContext* context = get_replica_context();
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(context->all_reduce(ReduceOp::kSum, 3), 3);
  EXPECT_TRUE(at::equal(context->all_gather(at::ones({2}), 0), at::ones({2})));
  const bool in_merge = context->merge_call(
      [](const Strategy&, const PerReplica<int>& value) {
        EXPECT_EQ(value.only(), 4);
        EXPECT_FALSE(has_strategy());
        EXPECT_EQ(get_replica_context(), nullptr);
        return in_cross_replica_context();
      },
      4);
  EXPECT_TRUE(in_merge);
}

}  // namespace tutti::merge_contract_test
