// SPDX-License-Identifier: Apache-2.0
//
// Variables where values, copies and names are easily mistaken for one another.

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/device/device_scope.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"

namespace tutti::variable_edge_cases_test {

using test::my_id;

const std::vector<std::string> kTwo = test::cpus(2);

Variable make(const Strategy& strategy, const at::Tensor& value, VariableAggregation aggregation,
              VariableSynchronization synchronization = VariableSynchronization::kAuto) {
  return test::make_variable(strategy, value,
                             {.name = "v",
                              .synchronization = synchronization,
                              .aggregation = aggregation,
                              .trainable = false});
}

TEST(VariableEdgeCases, DifferentMirroredVariablesAreAveraged) {
  const MirroredStrategy strategy(kTwo);
  const Variable v = make(strategy, at::zeros({3}), VariableAggregation::kMean);
  const Variable a = make(strategy, at::full({3}, 2.0), VariableAggregation::kNone);
  const Variable b = make(strategy, at::full({3}, 6.0), VariableAggregation::kNone);
  strategy.run([&] { v.assign(my_id() == 0 ? a : b, {.read_value = false}); });
  for (const at::Tensor& copy : v.components()) {
    EXPECT_TRUE(at::equal(copy, at::full({3}, 4.0))) << copy;
  }
  strategy.run([&] { v.assign(b, {.read_value = false}); });
  EXPECT_TRUE(at::equal(v.value(), at::full({3}, 6.0)));
  const Variable sum = make(strategy, at::zeros({3}), VariableAggregation::kSum);
  strategy.run([&] { sum.assign(my_id() == 0 ? a : b); });
  EXPECT_TRUE(at::equal(sum.components()[1], at::full({3}, 8.0)));
}

TEST(VariableEdgeCases, CountersKeepEveryBit) {
  for (const int replicas : {1, 2}) {
    const MirroredStrategy strategy(replicas == 1 ? std::vector<std::string>{"CPU:0"} : kTwo);
    const Variable count = make(strategy, at::zeros({}, at::kLong), VariableAggregation::kSum,
                                VariableSynchronization::kOnRead);
    const int64_t large = (int64_t{1} << 53) + 2;
    count.assign(at::scalar_tensor(large, at::kLong));
    EXPECT_EQ(count.value().item<int64_t>(), large);
    count.assign(33554434);
    EXPECT_EQ(count.value().item<int64_t>(), 33554434);
  }
}

TEST(VariableEdgeCases, ANumberOverAVariableIsLibTorchsQuotient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong}) {
    const at::Tensor values = at::arange(1, 200, at::kLong).to(dtype);
    const Variable v(values, {.trainable = false});
    const at::Tensor plain = at::div(at::full({}, 49, dtype), values);
    EXPECT_TRUE(at::equal(49 / v, plain)) << dtype;
    if (dtype != at::kLong) {
      EXPECT_TRUE(at::equal(49.0 / v, plain)) << dtype;
    }
  }
}

TEST(VariableEdgeCases, RowsOfTheVariableItselfMayBeScattered) {
  const MirroredStrategy strategy(kTwo);
  const Variable v = make(strategy, at::full({2, 2}, 3.0), VariableAggregation::kMean);
  const at::Tensor rows = strategy.local_results(v)[0].slice(0, 0, 1);
  const at::Tensor first = at::zeros({1}, at::kLong);
  v.scatter_add({rows, first});
  for (const at::Tensor& copy : v.components()) {
    EXPECT_TRUE(at::equal(copy[0], at::full({2}, 6.0))) << copy;
  }
  strategy.run([&] { v.scatter_add({rows, first}); });
  for (const at::Tensor& copy : v.components()) {
    EXPECT_TRUE(at::equal(copy[0], at::full({2}, 12.0))) << copy;
    EXPECT_TRUE(at::equal(copy[1], at::full({2}, 3.0))) << copy;
  }
}

TEST(VariableEdgeCases, ASynchronisedValueIsNobodysCopy) {
  const MirroredStrategy strategy(kTwo);
  const Variable v = make(strategy, at::ones({2}), VariableAggregation::kOnlyFirstReplica,
                          VariableSynchronization::kOnRead);
  const auto values = strategy.run([&] {
    v.assign(at::full({2}, 1.0 + my_id()));
    const auto scope = variable_sync_on_read_context();
    at::Tensor value = v;
    v.assign_add(at::ones({2}));
    return value;
  });
  EXPECT_TRUE(at::equal(values[0], at::ones({2})));
  EXPECT_TRUE(at::equal(values[1], at::ones({2})));
}

TEST(VariableEdgeCases, TheNameIsTheFirstOnesOutsideOfReplicas) {
  const MirroredStrategy strategy(kTwo);
  const Variable v = make(strategy, at::ones({}), VariableAggregation::kNone);
  const DeviceSpec second = DeviceSpec::canonical("CPU:1");
  const DeviceScope device(second);
  EXPECT_EQ(v.name(), "v");
  EXPECT_EQ(v.device(), second);
  EXPECT_EQ(strategy.run([&] { return v.name(); })[1], "v/replica_1");
}

TEST(VariableEdgeCases, AReadOutsideOfReplicasIsACopyUnderEveryStrategy) {
  const OneDeviceStrategy one("CPU:0");
  const MirroredStrategy two(kTwo);
  for (const Strategy& strategy : {Strategy(one), Strategy(two)}) {
    const Variable v = make(strategy, at::ones({}), VariableAggregation::kNone);
    const at::Tensor before = v;
    v.assign(2.0);
    EXPECT_EQ(before.item<double>(), 1) << strategy.extended().describe();
    const auto inside = strategy.run([&] { return v.value().is_same(v.components()[0]); });
    EXPECT_TRUE(inside[0]);
  }
}

TEST(VariableEdgeCases, SumsOfTruthValuesAreRefusedByName) {
  const MirroredStrategy strategy(kTwo);
  const Variable flag = make(strategy, at::zeros({2}, at::kBool), VariableAggregation::kSum);
  EXPECT_TUTTI_ERROR(strategy.run([&] { flag.assign(at::ones({2}, at::kBool)); }),
                     ErrorCode::kInvalidArgument, "Variable::assign", "'v'", "bool");
}

TEST(VariableEdgeCases, StrategiesThatLookAlikeAreToldApart) {
  const MirroredStrategy mine(kTwo);
  const MirroredStrategy other(kTwo);
  const Variable v = make(other, at::ones({}), VariableAggregation::kNone);
  const auto update = [&] {
    mine.extended().update(v, [](const Variable& copy) { copy.assign(2.0); });
  };
  EXPECT_TUTTI_ERROR(update(), ErrorCode::kInvalidArgument,
                     "not to MirroredStrategy(CPU:0, CPU:1) "
                     "(another object)");
  EXPECT_TUTTI_ERROR(mine.reduce(ReduceOp::kMean, v), ErrorCode::kInvalidArgument,
                     "(another object)");
}

TEST(VariableEdgeCases, ErrorsOfReadValueSayReadValue) {
  const MirroredStrategy strategy(kTwo);
  const Variable v = strategy.scope(
      [] { return Variable(1.0, {.synchronization = VariableSynchronization::kOnRead}); });
  EXPECT_TUTTI_ERROR(v.read_value(), ErrorCode::kInvalidArgument, "Variable::read_value:");
  EXPECT_TUTTI_ERROR(v.value(), ErrorCode::kInvalidArgument, "Variable::value:");
}

}  // namespace tutti::variable_edge_cases_test
