// SPDX-License-Identifier: Apache-2.0
//
// The contract of variables: making them, their properties, reading and gradients.

#include <atomic>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tutti/device/device_scope.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/values/variable.h"

#include "tests/contract/strategy_contract.h"
#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::variable_contract_test {

using test::bit_equal;
using test::copies_are;
using test::make_variable;
using test::my_id;
using test::on_read;
using test::scalar;
using test::tensor;

constexpr auto kOnRead = VariableSynchronization::kOnRead;

std::string printed(const Variable& variable) {
  std::ostringstream out;
  out << variable;
  return out.str();
}

TEST_P(StrategyContract, AVariableHasCopiesOfItsInitialTensor) {
  at::Tensor initial = tensor({1.5F, -2.F, 3.F});
  const Variable v = make_variable(strategy(), initial, {.name = "v"});
  EXPECT_EQ(v.components().size(), static_cast<size_t>(copies()));
  EXPECT_EQ(v.dtype(), at::kFloat);
  EXPECT_EQ(v.shape(), at::IntArrayRef({3}));
  EXPECT_TRUE(v.is_initialized());
  EXPECT_TRUE(v.strategy() == strategy());
  initial.fill_(7);
  EXPECT_TRUE(copies_are(v, tensor({1.5F, -2.F, 3.F})));
  for (size_t i = 0; i < v.components().size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(v.components()[i].data_ptr(), v.components()[j].data_ptr());
    }
  }
}

TEST_P(StrategyContract, AVariableIsMadeOfANumber) {
  EXPECT_TRUE(copies_are(make_variable(strategy(), 1.5), scalar(1.5F)));
  EXPECT_TRUE(copies_are(make_variable(strategy(), 1.5F), scalar(1.5F)));
  EXPECT_TRUE(copies_are(make_variable(strategy(), 3), scalar<int64_t>(3)));
  EXPECT_TRUE(copies_are(make_variable(strategy(), true), scalar(true)));
  EXPECT_TRUE(copies_are(make_variable(strategy(), 3, {.dtype = at::kFloat}), scalar(3.F)));
}

TEST_P(StrategyContract, ANumberKeepsItsDigitsInAVariableOfDoubles) {
  EXPECT_TRUE(copies_are(make_variable(strategy(), 0.1, {.dtype = at::kDouble}), scalar(0.1)));
  const auto tenth = [] { return 0.1; };
  const Variable v = make_variable(strategy(), tenth, {.dtype = at::kDouble});
  EXPECT_TRUE(copies_are(v, scalar(0.1)));
  v.assign(0.7);
  EXPECT_TRUE(copies_are(v, scalar(0.7)));
}

TEST_P(StrategyContract, AnInitialTensorIsConvertedToTheDtypeAskedFor) {
  const Variable v = make_variable(strategy(), tensor({1, 2}), {.dtype = at::kDouble});
  EXPECT_TRUE(copies_are(v, tensor({1.0, 2.0})));
}

TEST_P(StrategyContract, AnInitialisingFunctionIsCalledOnce) {
  int calls = 0;
  const Variable v = make_variable(strategy(), [&] {
    ++calls;
    return at::randn({4});
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(copies_are(v, v.components()[0]));
  const Variable number = make_variable(strategy(), [] { return 2; });
  EXPECT_TRUE(copies_are(number, scalar<int64_t>(2)));
}

TEST_P(StrategyContract, AnInitialisingFunctionInARunIsCalledOnce) {
  std::atomic<int> calls{0};
  const auto made = strategy().run([&] {
    return Variable([&] {
      ++calls;
      return at::randn({4});
    });
  });
  EXPECT_EQ(calls.load(), 1);
  for (const Variable& v : made) EXPECT_TRUE(v.is_same(made[0]));
  EXPECT_TRUE(copies_are(made[0], made[0].components()[0]));
}

TEST_P(StrategyContract, AnUndefinedOrSparseInitialValueIsRefused) {
  EXPECT_TUTTI_ERROR(make_variable(strategy(), at::Tensor(), {.name = "v"}),
                     ErrorCode::kInvalidArgument, "'v'", "undefined");
  EXPECT_TUTTI_ERROR(make_variable(strategy(), at::ones({2, 2}).to_sparse(), {.name = "v"}),
                     ErrorCode::kInvalidArgument, "'v'", "not a dense");
}

TEST_P(StrategyContract, CopiesAreNamedAfterTheirReplica) {
  const Variable v = make_variable(strategy(), 1.0, {.name = "v"});
  EXPECT_EQ(v.name(), "v");
  const auto names = strategy().run([&] { return v.name(); });
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(names[static_cast<size_t>(i)],
              i < copies() && i > 0 ? "v/replica_" + std::to_string(i) : "v");
  }
  EXPECT_EQ(make_variable(strategy(), 1.0).name(), "Variable");
}

TEST_P(StrategyContract, CopiesLieOnTheDevicesOfTheReplicas) {
  const auto sync = variables_are_shared() ? kOnRead : VariableSynchronization::kAuto;
  const Variable v = make_variable(strategy(), 1.0, {.name = "v", .synchronization = sync});
  const auto device = [](int i) { return DeviceSpec::canonical("CPU:" + std::to_string(i)); };
  EXPECT_EQ(v.device(), device(0));
  const auto devices = strategy().run([&] { return v.device(); });
  ASSERT_EQ(v.devices().size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(devices[static_cast<size_t>(i)], device(i));
    EXPECT_EQ(v.devices()[static_cast<size_t>(i)], device(i));
    const DeviceScope on(v.devices()[static_cast<size_t>(i)]);
    EXPECT_EQ(v.device(), device(i));
  }
  const DeviceSpec no_replicas_device = DeviceSpec::canonical("CPU:9");
  const DeviceScope elsewhere(no_replicas_device);
  EXPECT_EQ(v.device(), device(0));
}

TEST_P(StrategyContract, TrainableVariablesRequireAGradient) {
  const auto check = [&](const VariableOptions& options, bool trainable) {
    const Variable v = make_variable(strategy(), 1.0, options);
    EXPECT_EQ(v.trainable(), trainable);
    for (const at::Tensor& each : v.components()) EXPECT_EQ(each.requires_grad(), trainable);
  };
  check({}, true);
  check({.trainable = false}, false);
  check({.synchronization = VariableSynchronization::kOnWrite}, true);
  check({.synchronization = kOnRead}, false);
  check({.synchronization = kOnRead, .trainable = true}, true);
  const Variable integers = make_variable(strategy(), 1);
  EXPECT_TRUE(integers.trainable());
  EXPECT_FALSE(integers.components()[0].requires_grad());
}

TEST_P(StrategyContract, AVariableTellsItsOptions) {
  const Variable v = make_variable(
      strategy(), 1.0,
      {.synchronization = kOnRead, .aggregation = VariableAggregation::kOnlyFirstReplica});
  EXPECT_EQ(v.synchronization(), kOnRead);
  EXPECT_EQ(v.aggregation(), VariableAggregation::kOnlyFirstReplica);
  const Variable by_default = make_variable(strategy(), 1.0);
  EXPECT_EQ(by_default.aggregation(), VariableAggregation::kNone);
  EXPECT_EQ(by_default.synchronization(), variables_are_plain()
                                              ? VariableSynchronization::kAuto
                                              : VariableSynchronization::kOnWrite);
}

TEST_P(StrategyContract, InvalidOptionsOfAVariableAreRefused) {
  EXPECT_TUTTI_ERROR(
      make_variable(strategy(), 1.0, {.synchronization = static_cast<VariableSynchronization>(17)}),
      ErrorCode::kInvalidArgument, "invalid variable synchronization mode", "17");
  EXPECT_TUTTI_ERROR(
      make_variable(strategy(), 1.0, {.aggregation = static_cast<VariableAggregation>(18)}),
      ErrorCode::kInvalidArgument, "invalid variable aggregation mode", "18");
  for (const at::ScalarType dtype : {at::kInt, at::kLong, at::kBool}) {
    EXPECT_TUTTI_ERROR(
        make_variable(strategy(), 1, {.aggregation = VariableAggregation::kMean, .dtype = dtype}),
        ErrorCode::kInvalidArgument, "kMean", "only floating-point");
  }
  if (GetParam().copies != StrategyCase::Copies::kPerReplica) return;
  EXPECT_TUTTI_ERROR(
      make_variable(strategy(), 1.0, {.synchronization = VariableSynchronization::kNone}),
      ErrorCode::kInvalidArgument, "kNone variable synchronization mode is not supported");
}

TEST_P(StrategyContract, AVariablePrintsItsCopies) {
  const auto line = [](int i, const std::string& name, const std::string& value) {
    return "<tf.Variable '" + name + (i == 0 ? "" : "/replica_" + std::to_string(i)) + ":0' " +
           value + ">";
  };
  const auto expect = [&](const Variable& v, const std::string& kind, const std::string& value) {
    if (variables_are_plain()) {
      EXPECT_EQ(printed(v), line(0, v.name(), value));
      return;
    }
    std::string text = kind + ":{\n";
    const int count = kind == "SyncOnReadVariable" ? n() : copies();
    for (int i = 0; i < count; ++i) {
      text += "  " + std::to_string(i) + ": " + line(i, v.name(), value);
      text += i + 1 < count ? ",\n" : "\n";
    }
    EXPECT_EQ(printed(v), text + "}");
  };
  expect(make_variable(strategy(), 1.0),
         variables_are_shared() ? "AggregatingVariable" : "MirroredVariable",
         "shape=() dtype=float32, numpy=1.0");
  expect(make_variable(strategy(), 5, {.name = "m", .synchronization = kOnRead}),
         "SyncOnReadVariable", "shape=() dtype=int64, numpy=5");
}

TEST_P(StrategyContract, GradientsOfAReplicaAreThoseOfPlainAutograd) {
  const at::Tensor initial = tensor({0.5, -1.25, 2.0});
  const auto input = [](int i) { return tensor({1.0, 2.0, 3.0}) * (i + 1) + i; };
  const Variable w = make_variable(strategy(), initial);
  const auto gradients = strategy().run([&] {
    ((w * input(my_id())).sum().pow(2)).backward();
    return w.grad();
  });
  for (int i = 0; i < n(); ++i) {
    at::Tensor plain = initial.clone().set_requires_grad(true);
    ((plain * input(i)).sum().pow(2)).backward();
    EXPECT_TRUE(bit_equal(gradients[static_cast<size_t>(i)], plain.grad()));
    if (variables_are_shared()) continue;
    EXPECT_TRUE(bit_equal(w.components()[static_cast<size_t>(i)].grad(), plain.grad()));
  }
  if (n() > 1) {
    EXPECT_TUTTI_ERROR(w.grad(), ErrorCode::kFailedPrecondition, "grad",
                       std::to_string(n()) + (variables_are_shared() ? " replicas" : " copies"));
  } else {
    EXPECT_TRUE(bit_equal(w.grad(), gradients[0]));
  }
}

TEST_P(StrategyContract, GradientsFlowThroughEveryWayOfReading) {
  const Variable w = make_variable(strategy(), tensor({1.0, 2.0}));
  strategy().run([&] {
    const at::Tensor converted = w;
    (w.value().sum() + 10 * w.read_value().sum() + 100 * converted.sum()).backward();
    EXPECT_TRUE(bit_equal(w.grad(), tensor({111.0, 111.0})));
  });
}

TEST_P(StrategyContract, WritesAreNotRecordedForGradients) {
  const Variable w =
      make_variable(strategy(), tensor({1.0, 2.0}), {.aggregation = for_equal_writes()});
  strategy().run([&] {
    at::Tensor x = tensor({3.0, 4.0}).set_requires_grad(true);
    w.assign(x * 2);
    EXPECT_TRUE(w.value().is_leaf());
    (w * 5).sum().backward();
    EXPECT_FALSE(x.grad().defined());
  });
}

TEST_P(StrategyContract, OperatorsActOnTheValue) {
  const at::Tensor a = tensor({1.5, -2.0, 0.3});
  const at::Tensor b = tensor({0.7, 3.0, -0.1});
  const Variable v = make_variable(strategy(), a, {.trainable = false});
  const Variable w = make_variable(strategy(), b, {.trainable = false});
  const auto check = [&] {
    EXPECT_TRUE(bit_equal(v + w, a + b));
    EXPECT_TRUE(bit_equal(v - w, a - b));
    EXPECT_TRUE(bit_equal(v * w, a * b));
    EXPECT_TRUE(bit_equal(v / w, a / b));
    EXPECT_TRUE(bit_equal(v + b, a + b));
    EXPECT_TRUE(bit_equal(b - v, b - a));
    EXPECT_TRUE(bit_equal(v * 3, a * 3));
    EXPECT_TRUE(bit_equal(v / 0.3, a / 0.3));
    EXPECT_TRUE(bit_equal(2 - v, 2 - a));
    EXPECT_TRUE(bit_equal(2 + v, 2 + a));
    EXPECT_TRUE(bit_equal(0.1 * v, 0.1 * a));
    EXPECT_TRUE(bit_equal(3.0 / v, 3.0 / a));
    EXPECT_TRUE(bit_equal(v - at::Scalar(0.1), a - 0.1));
    EXPECT_TRUE(bit_equal(-v, -a));
  };
  check();
  strategy().scope(check);
  strategy().run(check);
}

TEST_P(StrategyContract, ReadValueIsASnapshotAndAReplicasValueIsNot) {
  const Variable v =
      make_variable(strategy(), tensor({1.0, 2.0}), {.aggregation = for_equal_writes()});
  const at::Tensor outside = v.read_value();
  strategy().run([&] {
    const at::Tensor shared = v.value();
    const at::Tensor snapshot = v.read_value();
    v.assign(tensor({5.0, 6.0}));
    EXPECT_TRUE(bit_equal(shared, tensor({5.0, 6.0})));
    EXPECT_TRUE(bit_equal(snapshot, tensor({1.0, 2.0})));
  });
  EXPECT_TRUE(bit_equal(outside, tensor({1.0, 2.0})));
  EXPECT_TRUE(bit_equal(v.read_value(), tensor({5.0, 6.0})));
}

TEST_P(StrategyContract, OutsideOfRunAValueIsACopyUnlessThereIsNoStrategy) {
  const Variable v = make_variable(strategy(), tensor({1.0}));
  const at::Tensor before = v.value();
  EXPECT_EQ(before.requires_grad(), GetParam().is_default);
  v.assign(2.0);
  EXPECT_TRUE(bit_equal(before, tensor({GetParam().is_default ? 2.0 : 1.0})));
}

TEST_P(StrategyContract, AssignReturnsTheNewValueUnlessToldNotTo) {
  const Variable v =
      make_variable(strategy(), tensor({1.0, 2.0}), {.aggregation = for_equal_writes()});
  const auto check = [&](int times) {
    EXPECT_TRUE(bit_equal(v.assign(tensor({1.0, 2.0})), tensor({1.0, 2.0})));
    EXPECT_TRUE(bit_equal(v.assign_add(tensor({1.0, 1.0})), tensor({2.0, 3.0})));
    EXPECT_TRUE(bit_equal(v.assign_sub(tensor({0.5, 0.5})), tensor({1.5, 2.5})));
    EXPECT_FALSE(v.assign_add(0.5, {.read_value = false}).defined());
    EXPECT_TRUE(bit_equal(v.read_value(), tensor({2.0, 3.0}))) << times;
  };
  check(0);
  strategy().scope([&] { check(1); });
  strategy().run([&] { check(2); });
}

TEST_P(StrategyContract, NumbersAreConvertedToTheDtypeOfTheVariable) {
  const Variable v = make_variable(strategy(), tensor<int64_t>({1, 2}));
  EXPECT_TRUE(bit_equal(v.assign(7), tensor<int64_t>({7, 7})));
  EXPECT_TRUE(bit_equal(v.assign_add(2.0), tensor<int64_t>({9, 9})));
  EXPECT_TUTTI_ERROR(v.assign(2.5), ErrorCode::kInvalidArgument, "assign", "2.5", "int64[2]");
  const Variable flag = make_variable(strategy(), false);
  EXPECT_TRUE(bit_equal(flag.assign(true), scalar(true)));
  EXPECT_TUTTI_ERROR(flag.assign(2), ErrorCode::kInvalidArgument, "assign", "bool");
  EXPECT_TRUE(bit_equal(flag.assign(scalar(false)), scalar(false)));
  const Variable half = make_variable(strategy(), 0.0, {.dtype = at::kHalf});
  EXPECT_TRUE(bit_equal(half.assign(0.1), at::full({}, 0.1, at::kHalf)));
}

TEST_P(StrategyContract, AValueThatDoesNotFitIsRefusedEverywhere) {
  const Variable v = make_variable(strategy(), tensor({1.F, 2.F}), {.name = "v"});
  const auto check = [&] {
    EXPECT_TUTTI_ERROR(v.assign(tensor({1.0, 2.0})), ErrorCode::kInvalidArgument,
                       "Variable::assign:", "float64[2]", "variable 'v' (float32[2])");
    EXPECT_TUTTI_ERROR(v.assign_add(tensor({1.F})), ErrorCode::kInvalidArgument,
                       "Variable::assign_add:", "float32[1]");
    EXPECT_TUTTI_ERROR(v.assign_sub(at::Tensor()), ErrorCode::kInvalidArgument,
                       "Variable::assign_sub:", "undefined");
    EXPECT_TUTTI_ERROR(v.assign(at::ones({2}).to_sparse()), ErrorCode::kInvalidArgument, "dense");
    const PerReplica<at::Tensor> many(std::vector<at::Tensor>(9, tensor({1.F, 2.F})));
    EXPECT_TUTTI_ERROR(v.assign(many), ErrorCode::kInvalidArgument, "9 components",
                       "takes " + std::to_string(n()));
  };
  check();
  strategy().run(check);
  EXPECT_TRUE(copies_are(v, tensor({1.F, 2.F})));
}

TEST_P(StrategyContract, AViewOfTheVariableCanBeAssignedToIt) {
  const at::Tensor initial = tensor({1.0, 2.0, 3.0, 4.0}).reshape({2, 2});
  const Variable v = make_variable(strategy(), initial, {.aggregation = for_equal_writes()});
  strategy().run([&] { v.assign(v.value().t()); });
  EXPECT_TRUE(copies_are(v, tensor({1.0, 3.0, 2.0, 4.0}).reshape({2, 2})));
  v.assign_add(v);
  EXPECT_TRUE(copies_are(v, tensor({2.0, 6.0, 4.0, 8.0}).reshape({2, 2})));
}

TEST_P(StrategyContract, ReplicasAddTheirValues) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong}) {
    const Variable v = make_variable(strategy(), at::full({3}, 10, dtype),
                                     {.aggregation = VariableAggregation::kSum});
    strategy().run([&] { v.assign_add(at::full({3}, my_id() + 1, dtype)); });
    EXPECT_TRUE(copies_are(v, at::full({3}, 10 + n() * (n() + 1) / 2, dtype)));
  }
}

TEST_P(StrategyContract, AVariableThatSynchronisesOnReadSumsItsCopies) {
  const Variable v = on_read(strategy(), tensor<int64_t>({0, 100}), VariableAggregation::kSum);
  for (int step = 0; step < 3; ++step) {
    strategy().run([&] { v.assign_add(tensor<int64_t>({my_id() + 1, 0})); });
  }
  EXPECT_TRUE(bit_equal(v.value(), tensor<int64_t>({3 * n() * (n() + 1) / 2, 100 * n()})));
  EXPECT_TRUE(bit_equal(strategy().extended().read_var(v), v.read_value()));
}

TEST_P(StrategyContract, AClonedVariableIsEqualAndApart) {
  const Variable v = make_variable(
      strategy(), tensor<int64_t>({0, 5}),
      {.name = "m", .synchronization = kOnRead, .aggregation = VariableAggregation::kSum});
  strategy().run([&] { v.assign_add(my_id()); });
  const Variable copy = v.clone();
  EXPECT_FALSE(copy.is_same(v));
  EXPECT_TRUE(copy.strategy() == strategy());
  EXPECT_EQ(copy.name(), "m");
  EXPECT_EQ(copy.aggregation(), VariableAggregation::kSum);
  EXPECT_EQ(copy.synchronization(), kOnRead);
  EXPECT_FALSE(copy.trainable());
  const auto expected = [](int i) { return tensor<int64_t>({i, 5 + i}); };
  EXPECT_TRUE(copies_are(copy, expected));
  strategy().run([&] { v.assign(9); });
  EXPECT_TRUE(copies_are(copy, expected));
  EXPECT_TUTTI_ERROR(strategy().run([&] { v.clone(); }), ErrorCode::kFailedPrecondition, "clone");
}

TEST_P(StrategyContract, AVariableOutlivesTheHandleOfItsStrategy) {
  std::optional<Strategy> handle(GetParam().make());
  const Variable v = make_variable(*handle, 1.0, {.aggregation = VariableAggregation::kSum});
  handle.reset();
  EXPECT_EQ(v.assign_add(1.0).item<float>(), 2.F);
  v.strategy().run([&] { v.assign_add(scalar(1.F)); });
  EXPECT_TRUE(copies_are(v, scalar(2.F + static_cast<float>(n()))));
}

TEST_P(StrategyContract, AVariableIsAnArgumentOfRunAsItIs) {
  const Variable v = make_variable(strategy(), 3.0);
  const auto same = strategy().run(
      [&](const Variable& mine) { return mine.is_same(v) && mine.value().item<float>() == 3.F; },
      v);
  for (const bool each : same) EXPECT_TRUE(each);
}

TEST_P(StrategyContract, AVariableIsNotUsedInAnotherStrategy) {
  if (GetParam().is_default) return;
  const Variable v = make_variable(strategy(), tensor({1.F}), {.name = "v"});
  const Strategy other = GetParam().make();
  const auto check = [&] {
    const auto code = ErrorCode::kFailedPrecondition;
    EXPECT_TUTTI_ERROR(v.value(), code, "mixing different strategies", "'v'", "another object");
    EXPECT_TUTTI_ERROR(v.read_value(), code, "mixing different strategies");
    EXPECT_TUTTI_ERROR(at::Tensor(v), code, "mixing different strategies");
    EXPECT_TUTTI_ERROR(v.grad(), code, "mixing different strategies");
    EXPECT_TUTTI_ERROR(v.assign(1.0), code, "Variable::assign", "mixing different strategies");
    EXPECT_TUTTI_ERROR(v.scatter_add({tensor({1.F}), tensor({0})}), code, "Variable::scatter_add");
  };
  other.scope(check);
  other.run(check);
  EXPECT_TRUE(copies_are(v, tensor({1.F})));
}

TEST_P(StrategyContract, AVariableOfNoStrategyIsReadInAReplica) {
  const Variable plain(tensor({1.F, 2.F}), {.name = "p"});
  strategy().run([&] { EXPECT_TRUE(bit_equal(plain.read_value(), tensor({1.F, 2.F}))); });
  strategy().scope([&] { plain.assign(3.0); });
  EXPECT_TRUE(copies_are(plain, tensor({3.F, 3.F})));
  const auto write = [&] { plain.assign_add(1.0); };
  const auto scatter = [&] { plain.scatter_add({tensor({1.F}), tensor({1})}); };
  if (n() > 1) {
    EXPECT_TUTTI_ERROR(strategy().run(write), ErrorCode::kFailedPrecondition, "assign_add",
                       "variable 'p' (float32[2])", "outside of a scope");
    EXPECT_TUTTI_ERROR(strategy().run(scatter), ErrorCode::kFailedPrecondition, "scatter_add");
    EXPECT_TRUE(copies_are(plain, tensor({3.F, 3.F})));
  } else {
    strategy().run(write);
    strategy().run(scatter);
    EXPECT_TRUE(copies_are(plain, tensor({4.F, 5.F})));
  }
}

TEST_P(StrategyContract, ANullVariableIsRefused) {
  EXPECT_TUTTI_ERROR(Variable(std::shared_ptr<VariableImpl>()), ErrorCode::kInvalidArgument,
                     "null");
}

}  // namespace tutti::variable_contract_test
