// SPDX-License-Identifier: Apache-2.0
//
// Variables that replicas make together in a run, replicas that disagree about variables, and where
// variables may be used.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"
#include "tutti/strategy/internal/variable_registry.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/values/variable.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::variable_creation_test {

using namespace std::chrono_literals;
using namespace test::variable_words;
using test::bit_equal;
using test::copies_are;
using test::cpus;
using test::make_variable;
using test::mirrored_cpus;
using test::my_id;
using test::on_read;
using test::on_write;
using test::scalar;
using test::tensor;

// Four replicas; the parameter says how many run simultaneously.
class VariableCreation : public testing::TestWithParam<int> {
 protected:
  // Runs fn, which must fail long before the replicas would time out.
  template <class F>
  void expect_failure(const F& fn, ErrorCode code, std::initializer_list<std::string> texts) const {
    const auto begin = std::chrono::steady_clock::now();
    try {
      strategy_.run(fn);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      for (const std::string& text : texts) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
            << '"' << text << "\" is not in: " << error.what();
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
    expect_usable();
  }

  void expect_usable() const {
    const auto made = strategy_.run([] { return Variable(1.0, {.aggregation = kSum}); });
    strategy_.run([&] { made[0].assign_add(scalar(static_cast<float>(my_id()))); });
    EXPECT_TRUE(copies_are(made[0], scalar(7.F)));
  }

  const MirroredStrategy strategy_{
      cpus(4), {.runner = {.concurrent_replicas = GetParam(), .meeting_timeout = 60s}}};
};

INSTANTIATE_TEST_SUITE_P(Concurrent, VariableCreation, testing::Values(0, 1, 2));

// ---- made together -------------------------------------------------------------------

TEST_P(VariableCreation, AllReplicasGetOneVariable) {
  const auto made = strategy_.run(
      [] { return Variable(tensor({1.F + static_cast<float>(my_id())}), {.name = "v"}); });
  for (const Variable& v : made) EXPECT_TRUE(v.is_same(made[0]));
  EXPECT_TRUE(copies_are(made[0], tensor({1.F})));  // that of replica 0
  EXPECT_EQ(made[0].components().size(), 4U);
  const auto names = strategy_.run([&](const Variable& v) { return v.name(); }, made);
  EXPECT_EQ(names[0], "v");
  EXPECT_EQ(names[3], "v/replica_3");
}

TEST_P(VariableCreation, VariablesAreMatchedByTheirCanonicalNames) {
  const auto made = strategy_.run([] {
    const std::string suffix = my_id() == 0 ? "" : "_" + std::to_string(my_id());
    return std::pair(Variable(1.0, {.name = "layer" + suffix + "/kernel" + suffix}),
                     Variable(2.0, {.name = "bias_1x" + suffix}));
  });
  for (const auto& [kernel, bias] : made) {
    EXPECT_TRUE(kernel.is_same(made[0].first));
    EXPECT_TRUE(bias.is_same(made[0].second));
  }
  EXPECT_EQ(made[0].first.name(), "layer/kernel");
}

TEST_P(VariableCreation, TheOrderOfDifferentNamesMayDiffer) {
  const auto made = strategy_.run([] {
    std::vector<std::string> names = {"a", "b", "c"};
    std::rotate(names.begin(), names.begin() + my_id() % 3, names.end());
    std::vector<Variable> variables;
    for (const std::string& name : names) {
      variables.emplace_back(static_cast<double>(name[0]), VariableOptions{.name = name});
    }
    std::rotate(variables.begin(), variables.end() - my_id() % 3, variables.end());
    return variables;
  });
  for (const std::vector<Variable>& mine : made) {
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(mine[i].is_same(made[0][i]));
      EXPECT_EQ(mine[i].name(), std::string(1, static_cast<char>('a' + i)));
      EXPECT_TRUE(copies_are(mine[i], scalar(static_cast<float>('a' + i))));
    }
  }
}

TEST_P(VariableCreation, VariablesOfOneNameAreMatchedInTheirOrder) {
  const auto made = strategy_.run([] { return std::pair(Variable(1.0), Variable(2.0)); });
  EXPECT_FALSE(made[0].first.is_same(made[0].second));
  for (const auto& [first, second] : made) {
    EXPECT_TRUE(first.is_same(made[0].first));
    EXPECT_TRUE(second.is_same(made[0].second));
  }
  EXPECT_TRUE(copies_are(made[0].first, scalar(1.F)));
  EXPECT_TRUE(copies_are(made[0].second, scalar(2.F)));
}

TEST_P(VariableCreation, EveryRunMakesNewVariables) {
  const auto step = [] { return Variable(1.0, {.name = "v"}); };
  const auto first = strategy_.run(step);
  const auto second = strategy_.run(step);
  EXPECT_FALSE(first[0].is_same(second[0]));
  first[0].assign(5);
  EXPECT_TRUE(copies_are(second[0], scalar(1.F)));
}

TEST_P(VariableCreation, AMergeFunctionMakesAVariable) {
  const auto made = strategy_.run([] {
    return get_replica_context()->merge_call([](const Strategy&) { return Variable(3.0); });
  });
  for (const Variable& v : made) EXPECT_TRUE(v.is_same(made[0]));
  EXPECT_TRUE(copies_are(made[0], scalar(3.F)));
  strategy_.run([&] { EXPECT_EQ(made[0].value().item<float>(), 3.F); });
}

TEST_P(VariableCreation, AVariableMadeInARunIsUsedInIt) {
  const auto results = strategy_.run([] {
    const Variable v(tensor({1.0, 2.0}), {.aggregation = kSum});
    v.assign_add(tensor({1.0, 0.0}) * my_id());
    (v * (my_id() + 1.0)).sum().backward();
    return std::pair(v.read_value(), v.grad());
  });
  for (int i = 0; i < 4; ++i) {
    const auto& [value, gradient] = results[static_cast<size_t>(i)];
    EXPECT_TRUE(bit_equal(value.detach(), tensor({7.0, 2.0})));
    EXPECT_TRUE(bit_equal(gradient, tensor({i + 1.0, i + 1.0})));
  }
}

TEST_P(VariableCreation, OtherMeetingsMayStandBetween) {
  strategy_.run([] {
    const Variable a(1.0, {.name = "a", .aggregation = kMean});
    const int sum = get_replica_context()->all_reduce(ReduceOp::kSum, my_id());
    const Variable b(static_cast<double>(sum), {.name = "b"});
    a.assign(b);
    EXPECT_EQ(a.value().item<float>(), 6.F);
  });
}

TEST_P(VariableCreation, TwoThreadsMayRunAndMakeVariables) {
  std::vector<std::unique_ptr<Thread>> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 2; ++t) {
    threads.push_back(std::make_unique<Thread>("maker", [&, t] {
      for (int k = 0; k < 20; ++k) {
        const auto made = strategy_.run([&] {
          const Variable v(static_cast<double>(100 * t + k), {.name = "v", .aggregation = kSum});
          v.assign_add(scalar(1.F));
          return v;
        });
        if (made[0].is_same(made[3]) &&
            copies_are(made[0], scalar(static_cast<float>(100 * t + k + 4)))) {
          ++good;
        }
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(good.load(), 40);
}

// ---- replicas that disagree --------------------------------------------------------------

TEST_P(VariableCreation, AReplicaThatMakesNoneIsAnErrorOnAll) {
  std::atomic<int> failed{0};
  expect_failure(
      [&] {
        if (my_id() == 2) return;
        try {
          const Variable v(1.0, {.name = "v"});
        } catch (const std::exception&) {
          ++failed;
          throw;
        }
      },
      ErrorCode::kFailedPrecondition, {"different numbers of calls", "Variable"});
  EXPECT_EQ(failed.load(), 3);
}

TEST_P(VariableCreation, AReplicaThatMakesAnotherNameIsAnErrorOnAll) {
  expect_failure(
      [] {
        const Variable v(1.0, {.name = my_id() == 3 ? "other" : "v"});
        get_replica_context()->all_reduce(ReduceOp::kSum, 1);
      },
      kInvalid, {"replica 0 called all_reduce", "replica 3 called Variable 'other'"});
}

TEST_P(VariableCreation, AVariableThatReplicaZeroDoesNotMakeIsAnError) {
  expect_failure(
      [] {
        const Variable v(1.0, {.name = "v"});
        if (my_id() == 1) const Variable w(1.0, {.name = "w"});
      },
      ErrorCode::kFailedPrecondition, {"different numbers of calls"});
}

TEST_P(VariableCreation, DifferentWishesAreAnError) {
  const auto expect = [&](const auto& make, std::initializer_list<std::string> texts) {
    expect_failure([&] { make(my_id() == 1); }, kInvalid, texts);
  };
  expect([](bool odd) { Variable(at::ones({odd ? 3 : 2}), {.name = "v"}); },
         {"replica 1", "'v'", "float32[3]", "float32[2]"});
  expect([](bool odd) { Variable(at::ones({2}, odd ? at::kDouble : at::kFloat), {.name = "v"}); },
         {"replica 1", "float64[2]", "float32[2]"});
  expect(
      [](bool odd) { Variable(at::ones({2}), {.name = "v", .aggregation = odd ? kSum : kMean}); },
      {"replica 1", "aggregation kSum", "kMean"});
  expect(
      [](bool odd) {
        Variable(at::ones({2}), {.name = "v",
                                 .synchronization = odd ? VariableSynchronization::kOnRead
                                                        : VariableSynchronization::kAuto});
      },
      {"replica 1", "synchronization kOnRead", "kOnWrite"});
  expect([](bool odd) { Variable(at::ones({2}), {.name = "v", .trainable = !odd}); },
         {"replica 1", "trainable"});
}

TEST_P(VariableCreation, EqualWishesMayBeWrittenDifferently) {
  strategy_.run([] {
    const bool odd = my_id() % 2 == 1;
    Variable(at::ones({2}), {.synchronization = odd ? VariableSynchronization::kOnWrite
                                                    : VariableSynchronization::kAuto,
                             .trainable = odd ? std::optional(true) : std::nullopt,
                             .dtype = odd ? std::optional(at::kFloat) : std::nullopt});
  });
}

TEST_P(VariableCreation, BadOptionsInARunAreAnErrorOnAll) {
  std::atomic<int> failed{0};
  expect_failure(
      [&] {
        try {
          const Variable v(1, {.aggregation = kMean});
        } catch (const std::exception&) {
          ++failed;
          throw;
        }
      },
      kInvalid, {"kMean", "int64"});
  EXPECT_EQ(failed.load(), 4);
}

TEST_P(VariableCreation, AnInitialiserThatThrowsIsReported) {
  EXPECT_THROW(
      strategy_.run([] { Variable([]() -> at::Tensor { throw std::logic_error("no value"); }); }),
      std::logic_error);
  expect_usable();
}

TEST_P(VariableCreation, OutsideOfRunAContextMakesNoVariable) {
  expect_usable();
  const auto inside = strategy_.extended().replica_context(0).enter();
  EXPECT_TUTTI_ERROR(Variable(1.0, {.name = "v"}), ErrorCode::kFailedPrecondition, "'v'",
                     "replica 0", "not running");
}

// ---- replicas that write differently ------------------------------------------------------

TEST_P(VariableCreation, DifferentVariablesAreAnErrorThatNamesBoth) {
  for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
    const Variable a =
        make_variable(strategy_, tensor({1.F}), {.name = "a", .aggregation = aggregation});
    const Variable b =
        make_variable(strategy_, tensor({1.F}), {.name = "b", .aggregation = aggregation});
    expect_failure([&] { (my_id() == 2 ? b : a).assign(tensor({2.F})); }, kInvalid,
                   {"replica 0 called assign of variable 'a' (float32[1])",
                    "replica 2 called assign of variable 'b' (float32[1])", "variable_creation"});
    EXPECT_TRUE(copies_are(a, tensor({1.F})));
    EXPECT_TRUE(copies_are(b, tensor({1.F})));
  }
}

TEST_P(VariableCreation, DifferentOperationsOnAVariableAreAnError) {
  for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
    const Variable v = on_write(strategy_, tensor({1.F}), aggregation);
    expect_failure(
        [&] {
          if (my_id() == 1) {
            v.assign_add(tensor({2.F}));
          } else {
            v.assign(tensor({2.F}));
          }
        },
        kInvalid, {"replica 0 called assign of", "replica 1 called assign_add of"});
    EXPECT_TRUE(copies_are(v, tensor({1.F})));
  }
}

TEST_P(VariableCreation, AReplicaThatSkipsTheAssignIsAnError) {
  for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
    const Variable v = on_write(strategy_, tensor({1.F}), aggregation);
    expect_failure(
        [&] {
          if (my_id() != 3) v.assign(tensor({2.F}));
        },
        ErrorCode::kFailedPrecondition, {"different numbers of calls", "assign"});
    EXPECT_TRUE(copies_are(v, tensor({1.F})));
  }
}

TEST_P(VariableCreation, AnExceptionInOneReplicaLeavesTheCopiesEqual) {
  for (const int64_t elements : {1, 70'000}) {
    for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
      const Variable v = on_write(strategy_, at::ones({elements}), aggregation);
      EXPECT_THROW(strategy_.run([&] {
        v.assign_add(at::ones({elements}));
        if (my_id() == 1) throw std::runtime_error("stop");
        v.assign_add(at::ones({elements}));
      }),
                   std::runtime_error);
      EXPECT_TRUE(copies_are(v, at::full({elements}, aggregation == kSum ? 5.F : 2.F)));
      expect_failure([&] { v.assign_add(at::ones({elements + my_id() / 3})); }, kInvalid,
                     {"assign_add", "'w'"});
      EXPECT_TRUE(copies_are(v, at::full({elements}, aggregation == kSum ? 5.F : 2.F)));
    }
  }
}

// ---- names and options -----------------------------------------------------------------------

TEST(VariableNames, CanonicalNamesHaveNoNumbersBeforeASlashOrTheEnd) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"v", "v"},       {"v_1", "v"},         {"v_12", "v"},    {"v_1/w_2", "v/w"},
      {"v_1x", "v_1x"}, {"v_", "v_"},         {"v1", "v1"},     {"", ""},
      {"a_1_2", "a_1"}, {"a_b_3/c", "a_b/c"}, {"/x_1/", "/x/"}, {"v_1/2", "v/2"}};
  for (const auto& [name, canonical] : names) {
    EXPECT_EQ(internal::canonical_variable_name(name), canonical) << name;
  }
}

TEST(VariableOptions, EnumeratorsHaveNames) {
  EXPECT_STREQ(to_string(VariableSynchronization::kAuto), "kAuto");
  EXPECT_STREQ(to_string(VariableSynchronization::kNone), "kNone");
  EXPECT_STREQ(to_string(VariableSynchronization::kOnWrite), "kOnWrite");
  EXPECT_STREQ(to_string(VariableSynchronization::kOnRead), "kOnRead");
  EXPECT_STREQ(to_string(kNone), "kNone");
  EXPECT_STREQ(to_string(kSum), "kSum");
  EXPECT_STREQ(to_string(kMean), "kMean");
  EXPECT_STREQ(to_string(kOnlyFirstReplica), "kOnlyFirstReplica");
}

TEST(VariableOptions, TwoAggregationsAreReductions) {
  EXPECT_EQ(to_reduce_op(kSum), ReduceOp::kSum);
  EXPECT_EQ(to_reduce_op(kMean), ReduceOp::kMean);
  EXPECT_TUTTI_ERROR(to_reduce_op(kNone), kInvalid, "VariableAggregation::kNone");
  EXPECT_TUTTI_ERROR(to_reduce_op(kOnlyFirstReplica), kInvalid, "kOnlyFirstReplica");
}

// ---- where variables live and are used ------------------------------------------------------

TEST(VariableColocation, VariablesLieWithAnother) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const Variable v = make_variable(strategy, 1.0);
  strategy.scope([&] {
    const auto colocation = strategy.extended().colocate_vars_with(v);
    EXPECT_EQ(Variable(2.0).devices(), v.devices());
  });
  const OneDeviceStrategy one("CPU:3");
  const Variable w = make_variable(one, 1.0);
  const auto colocation = one.extended().colocate_vars_with(w);
  EXPECT_EQ(make_variable(one, 1.0).device().to_string(),
            "/job:localhost/replica:0/task:0/device:CPU:3");
  EXPECT_EQ(make_variable(strategy, 1.0).devices().size(), 2U);
}

TEST(VariableColocation, OnlyWithAVariableOfTheStrategyAndInCrossReplicaContext) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const Variable v = make_variable(strategy, 1.0, {.name = "v"});
  const Variable plain(1.0, {.name = "plain"});
  const Variable other = make_variable(mirrored_cpus(2), 1.0, {.name = "other"});
  EXPECT_TUTTI_ERROR(strategy.extended().colocate_vars_with(plain), kInvalid, "colocate_vars_with",
                     "must only be passed a variable created in this", "'plain'");
  EXPECT_TUTTI_ERROR(strategy.extended().colocate_vars_with(other), kInvalid, "'other'");
  EXPECT_TUTTI_ERROR(
      strategy.run([&] { const auto colocation = strategy.extended().colocate_vars_with(v); }),
      ErrorCode::kFailedPrecondition, "colocate_vars_with", "cross-replica");
  const MirroredStrategy another = mirrored_cpus(2);
  EXPECT_TUTTI_ERROR(
      another.scope([&] { const auto colocation = strategy.extended().colocate_vars_with(v); }),
      ErrorCode::kFailedPrecondition, "mixing");
}

TEST(VariableUse, AThreadOfAReplicaUsesItsCopy) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const Variable v = on_read(strategy, scalar(0.F), kSum);
  strategy.run([&] {
    ReplicaContext* const context = get_replica_context();
    const Thread helper("helper", [&v, context] {
      const auto inside = context->enter();
      v.assign(context->replica_id_in_sync_group() + 1);
    });
  });
  EXPECT_TRUE(copies_are(v, [](int i) { return scalar(static_cast<float>(i + 1)); }));
}

TEST(VariableUse, WithOneReplicaNothingIsCombined) {
  const MirroredStrategy strategy = mirrored_cpus(1);
  for (const VariableAggregation aggregation : {kNone, kSum, kMean, kOnlyFirstReplica}) {
    const Variable v = on_write(strategy, tensor({1.F}), aggregation);
    const at::Tensor shared = tensor({2.F});
    strategy.run([&] {
      v.assign_add(shared);
      v.assign_add(1);
    });
    EXPECT_TRUE(copies_are(v, tensor({4.F}))) << aggregation;
  }
}

TEST(VariableUse, AStrategyThatIsSetMakesTheVariables) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  set_strategy(strategy);
  const Variable v(1.0, {.aggregation = kSum});
  v.assign_add(1);
  set_strategy(std::nullopt);
  EXPECT_TRUE(v.strategy() == strategy);
  EXPECT_TRUE(copies_are(v, scalar(2.F)));
  EXPECT_EQ(Variable(1.0).components().size(), 1U);
}

TEST(VariableUse, AVariableMayDieLast) {
  std::unique_ptr<Variable> last;
  {
    const MirroredStrategy strategy = mirrored_cpus(3);
    const auto made = strategy.run([] { return Variable(1.0, {.aggregation = kSum}); });
    last = std::make_unique<Variable>(made[0]);
  }
  last->strategy().run([&] { last->assign_add(scalar(1.F)); });
  EXPECT_TRUE(copies_are(*last, scalar(4.F)));
  last.reset();
}

TEST(VariableCreation, DifferentNamesOnDifferentReplicasAreBothInTheError) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  EXPECT_TUTTI_ERROR(strategy.run([] {
    const bool first = get_replica_context()->replica_id_in_sync_group() == 0;
    return Variable(1.0, {.name = first ? "weights" : "bias"}).name();
  }),
                     ErrorCode::kFailedPrecondition,
                     "replica 0 has finished (last: Variable of "
                     "'weights'",
                     "replica 1 waits in Variable of 'bias'");
}

TEST(VariableCreation, AWriteThatOneReplicaLeavesOutIsNamed) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const Variable total = strategy.scope(
      [] { return Variable(1.0, {.name = "total", .aggregation = VariableAggregation::kSum}); });
  EXPECT_TUTTI_ERROR(strategy.run([&] {
    if (get_replica_context()->replica_id_in_sync_group() == 1) total.assign_add(at::ones({}));
  }),
                     ErrorCode::kFailedPrecondition, "replica 1 waits in assign_add of 'total'");
}

}  // namespace tutti::variable_creation_test
