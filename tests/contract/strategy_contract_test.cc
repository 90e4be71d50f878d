// SPDX-License-Identifier: Apache-2.0
//
// The strategies that pass the contract, and its first part: contexts and scopes.

#include "tests/contract/strategy_contract.h"

#include <stdexcept>
#include <utility>

#include "tutti/base/log.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/contract/outside_strategy.h"
#include "tests/support/expect_error.h"

namespace tutti::strategy_contract_test {

using test::cpus;
using test::my_id;

// Every MirroredStrategy logs its devices; only warnings are of interest here.
class QuietLog : public testing::Environment {
  void SetUp() override { set_log_level(LogLevel::kWarning); }
};
[[maybe_unused]] const auto* const quiet_log = testing::AddGlobalTestEnvironment(new QuietLog);

StrategyCase mirrored(const std::string& name, int replicas, int concurrent = 0) {
  return {name, [=]() -> Strategy {
            return MirroredStrategy(cpus(replicas),
                                    {.runner = {.concurrent_replicas = concurrent}});
          }};
}

StrategyCase central(int replicas) {
  return {.name = "CentralStorage" + std::to_string(replicas),
          .make = [=]() -> Strategy { return CentralStorageStrategy(cpus(replicas)); },
          .copies = replicas == 1 ? StrategyCase::Copies::kPlain : StrategyCase::Copies::kShared};
}

INSTANTIATE_TEST_SUITE_P(
    All, StrategyContract,
    testing::Values(StrategyCase{"Default", [] { return Strategy(default_strategy_extended()); },
                                 true, StrategyCase::Copies::kPlain},
                    StrategyCase{"OneDevice", [] { return OneDeviceStrategy("CPU:0"); }, false,
                                 StrategyCase::Copies::kPlain},
                    mirrored("Mirrored1", 1), mirrored("Mirrored2", 2), mirrored("Mirrored3", 3),
                    mirrored("Mirrored4", 4), mirrored("Mirrored4OneAtATime", 4, 1),
                    mirrored("Mirrored4TwoAtATime", 4, 2), central(1), central(2), central(4),
                    StrategyCase{"Outside1", [] { return test::OutsideStrategy(1); }},
                    StrategyCase{"Outside3", [] { return test::OutsideStrategy(3); }}),
    [](const auto& each) { return each.param.name; });

// The answers of the four query functions.
struct Answers {
  const ReplicaContext* replica = nullptr;
  bool in_cross = false;
  bool has = false;
  const StrategyExtended* strategy = nullptr;

  static Answers now() {
    return {get_replica_context(), in_cross_replica_context(), has_strategy(),
            &get_strategy().extended()};
  }
};

TEST_P(StrategyContract, QueriesOutsideOfAScopeNameTheDefaultStrategy) {
  const Answers answers = Answers::now();
  ASSERT_NE(answers.replica, nullptr);
  EXPECT_EQ(answers.replica->replica_id_in_sync_group(), 0);
  EXPECT_EQ(answers.replica->num_replicas_in_sync(), 1);
  EXPECT_FALSE(answers.in_cross);
  EXPECT_FALSE(answers.has);
  EXPECT_EQ(answers.strategy, default_strategy_extended().get());
}

TEST_P(StrategyContract, QueriesInAScopeSeeCrossReplicaContext) {
  const Scope scope = strategy().scope();
  const Answers answers = Answers::now();
  EXPECT_EQ(answers.strategy, &strategy().extended());
  EXPECT_EQ(&scope.strategy().extended(), &strategy().extended());
  if (GetParam().is_default) {
    // The default strategy is current without a scope, so its scope changes nothing.
    EXPECT_NE(answers.replica, nullptr);
    EXPECT_FALSE(answers.in_cross);
    EXPECT_FALSE(answers.has);
  } else {
    EXPECT_EQ(answers.replica, nullptr);
    EXPECT_TRUE(answers.in_cross);
    EXPECT_TRUE(answers.has);
  }
}

TEST_P(StrategyContract, QueriesInRunSeeTheReplica) {
  const auto answers = strategy().run([] { return Answers::now(); });
  for (int i = 0; i < n(); ++i) {
    const Answers& mine = answers[static_cast<size_t>(i)];
    EXPECT_EQ(mine.replica, &strategy().extended().replica_context(i));
    EXPECT_FALSE(mine.in_cross);
    EXPECT_EQ(mine.has, !GetParam().is_default);
    EXPECT_EQ(mine.strategy, &strategy().extended());
  }
}

TEST_P(StrategyContract, QueriesInMergeCallSeeCrossReplicaContext) {
  const auto answers = strategy().run([] {
    return get_replica_context()->merge_call([](const Strategy&) { return Answers::now(); });
  });
  for (const Answers& mine : answers) {
    EXPECT_EQ(mine.replica, nullptr);
    EXPECT_TRUE(mine.in_cross);
    EXPECT_EQ(mine.has, !GetParam().is_default);
    EXPECT_EQ(mine.strategy, &strategy().extended());
  }
}

TEST_P(StrategyContract, QueriesAreBackAfterScopeRunAndFailure) {
  const auto expect_outside = [] {
    EXPECT_FALSE(has_strategy());
    EXPECT_FALSE(in_cross_replica_context());
    EXPECT_NE(get_replica_context(), nullptr);
  };
  { const Scope scope = strategy().scope(); }
  expect_outside();
  strategy().run([] {});
  expect_outside();
  EXPECT_THROW(strategy().run([] { throw std::out_of_range("x"); }), std::out_of_range);
  expect_outside();
  EXPECT_THROW(strategy().scope([] { throw std::out_of_range("x"); }), std::out_of_range);
  expect_outside();
}

TEST_P(StrategyContract, ReplicaContextTellsWhoItIs) {
  const auto ids = strategy().run([&] {
    const ReplicaContext* context = get_replica_context();
    EXPECT_EQ(context->num_replicas_in_sync(), n());
    EXPECT_EQ(context->device(),
              DeviceSpec::canonical("CPU:" + std::to_string(context->local_replica_id())));
    EXPECT_TRUE(context->strategy() == strategy());
    return context->replica_id_in_sync_group();
  });
  ASSERT_EQ(ids.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
}

TEST_P(StrategyContract, ScopeMayBeEnteredAgain) {
  const Scope outer = strategy().scope();
  {
    const Scope inner = strategy().scope();
    EXPECT_EQ(&get_strategy().extended(), &strategy().extended());
  }
  EXPECT_EQ(&get_strategy().extended(), &strategy().extended());
  EXPECT_EQ(has_strategy(), !GetParam().is_default);
}

TEST_P(StrategyContract, ScopeCallsAFunctionAndReturnsItsResult) {
  const int seven = strategy().scope([&] {
    EXPECT_EQ(&get_strategy().extended(), &strategy().extended());
    return 7;
  });
  EXPECT_EQ(seven, 7);
  auto moved = strategy().scope([] { return std::make_unique<int>(8); });
  EXPECT_EQ(*moved, 8);
}

TEST_P(StrategyContract, RunWorksInItsOwnScope) {
  const Scope scope = strategy().scope();
  const auto ids = strategy().run([] { return my_id(); });
  EXPECT_EQ(ids.size(), static_cast<size_t>(n()));
  EXPECT_EQ(in_cross_replica_context(), !GetParam().is_default);
}

TEST_P(StrategyContract, AnotherStrategyInAScopeIsAnErrorThatNamesBoth) {
  const MirroredStrategy other({"CPU:5", "CPU:6"});
  const Scope scope = other.scope();
  const std::string mine = strategy().extended().describe();
  EXPECT_TUTTI_ERROR(strategy().scope(), ErrorCode::kFailedPrecondition,
                     "mixing different strategies", mine, "MirroredStrategy(CPU:5, CPU:6)");
  EXPECT_TUTTI_ERROR(strategy().run([] {}), ErrorCode::kFailedPrecondition,
                     "mixing different strategies", mine, "MirroredStrategy(CPU:5, CPU:6)");
  EXPECT_EQ(&get_strategy().extended(), &other.extended());
}

TEST_P(StrategyContract, CrossReplicaMethodsInAReplicaAreErrorsThatNameTheRemedy) {
  strategy().run([&] {
    const auto value = per_replica([](int i) { return i; });
    const auto tensors = per_replica([](int) { return at::ones({1}); });
    EXPECT_TUTTI_ERROR(strategy().run([] {}), ErrorCode::kFailedPrecondition, "Strategy::run",
                       "merge_call");
    EXPECT_TUTTI_ERROR(strategy().scope(), ErrorCode::kFailedPrecondition, "Strategy::scope",
                       "merge_call");
    EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, value), ErrorCode::kFailedPrecondition,
                       "Strategy::reduce", "all_reduce()");
    EXPECT_TUTTI_ERROR(strategy().gather(tensors, 0), ErrorCode::kFailedPrecondition,
                       "Strategy::gather", "all_gather()");
    EXPECT_TUTTI_ERROR(strategy().distribute_values_from_function([](ValueContext) { return 0; }),
                       ErrorCode::kFailedPrecondition, "merge_call()");
    EXPECT_TUTTI_ERROR(set_strategy(std::nullopt), ErrorCode::kFailedPrecondition, "set_strategy");
  });
}

TEST_P(StrategyContract, SetStrategyMakesItCurrentUntilCleared) {
  set_strategy(strategy());
  EXPECT_EQ(&get_strategy().extended(), &strategy().extended());
  EXPECT_EQ(has_strategy(), !GetParam().is_default);
  EXPECT_EQ(in_cross_replica_context(), !GetParam().is_default);
  const auto ids = strategy().run([] { return my_id(); });
  EXPECT_EQ(ids.size(), static_cast<size_t>(n()));
  set_strategy(std::nullopt);
  EXPECT_FALSE(has_strategy());
  EXPECT_FALSE(in_cross_replica_context());
}

TEST_P(StrategyContract, SetStrategyInAScopeIsAnError) {
  if (GetParam().is_default) {
    const Scope scope = strategy().scope();
    EXPECT_NO_THROW(set_strategy(std::nullopt));
    return;
  }
  const Scope scope = strategy().scope();
  EXPECT_TUTTI_ERROR(set_strategy(strategy()), ErrorCode::kFailedPrecondition, "inside the scope");
  EXPECT_TUTTI_ERROR(set_strategy(std::nullopt), ErrorCode::kFailedPrecondition,
                     strategy().extended().describe());
}

TEST_P(StrategyContract, ContextsLiveAsLongAsTheStrategy) {
  const auto contexts = strategy().run([] { return get_replica_context(); });
  strategy().run([] {});
  for (int i = 0; i < n(); ++i) {
    ReplicaContext* context = contexts[static_cast<size_t>(i)];
    EXPECT_EQ(context->replica_id_in_sync_group(), i);
    EXPECT_TRUE(context->strategy() == strategy());
  }
}

TEST_P(StrategyContract, HandlesAreCheapCopiesOfOneStrategy) {
  const Strategy copy = strategy();
  EXPECT_TRUE(copy == strategy());
  EXPECT_EQ(&copy.extended(), &strategy().extended());
  const Scope scope = copy.scope();
  EXPECT_NO_THROW(strategy().run([] {}));
}

TEST_P(StrategyContract, ItsDevicesAreThoseOfItsReplicas) {
  const StrategyExtended& extended = strategy().extended();
  ASSERT_EQ(extended.worker_devices().size(), static_cast<size_t>(n()));
  EXPECT_EQ(extended.parameter_devices().size(), static_cast<size_t>(copies()));
  EXPECT_EQ(extended.num_local_replicas(), n());
  EXPECT_EQ(strategy().cluster_resolver(), nullptr);
  EXPECT_TUTTI_ERROR(extended.replica_context(n()), ErrorCode::kInvalidArgument, extended.name(),
                     "no local replica " + std::to_string(n()));
  EXPECT_TUTTI_ERROR(extended.replica_context(-1), ErrorCode::kInvalidArgument, "-1");
}

TEST_P(StrategyContract, ItsArenaGivesMemoryThatCanBeReducedInPlace) {
  const auto sums = strategy().run([&] {
    at::Tensor memory = strategy().extended().arena().empty({3, 5}, at::kFloat);
    EXPECT_TRUE(memory.is_contiguous());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data_ptr()) % 64, 0U);
    memory.fill_(my_id() + 1);
    get_replica_context()->all_reduce_(ReduceOp::kSum, memory);
    return memory;
  });
  for (const at::Tensor& sum : sums) {
    EXPECT_TRUE(at::equal(sum, at::full({3, 5}, n() * (n() + 1) / 2, at::kFloat))) << sum;
  }
}

TEST(OutsideStrategy, LargeResultsComeFromItsArena) {
  const test::OutsideStrategy strategy(2);
  auto& arena = dynamic_cast<test::OutsideArena&>(strategy.extended().arena());
  const auto sums = strategy.run(
      [] { return get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({100'000})); });
  EXPECT_TRUE(at::equal(sums[1], at::full({100'000}, 2.F)));
  EXPECT_GE(arena.allocations(), 2);
}

}  // namespace tutti::strategy_contract_test
