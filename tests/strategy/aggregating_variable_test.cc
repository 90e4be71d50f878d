// SPDX-License-Identifier: Apache-2.0
//
// Variables with one copy for all replicas, through a strategy that keeps its parameters in one
// place, as a user of the library would write it.

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/strategy/local_extended.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/component_variable.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::aggregating_variable_test {

using namespace test::variable_words;
using test::bit_equal;
using test::copies_are;
using test::kAllAggregations;
using test::my_id;
using test::on_write;
using test::random_tensor;
using test::scalar;
using test::tensor;
using test::tree_reduced;

class OnePlaceExtended final : public LocalExtended {
 public:
  explicit OnePlaceExtended(int replicas)
      : LocalExtended("OnePlaceStrategy", devices(replicas), nullptr, {},
                      {.parameter_devices = {DeviceSpec::canonical("CPU:7")}}) {}

 private:
  static std::vector<DeviceSpec> devices(int count) {
    std::vector<DeviceSpec> list;
    for (const std::string& name : test::cpus(count)) list.push_back(DeviceSpec::canonical(name));
    return list;
  }

  std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition,
                                                   const at::Tensor& initial_value) override {
    return make_aggregating_variable(std::move(definition), initial_value,
                                     static_cast<size_t>(num_local_replicas()));
  }
};

class AggregatingVariable : public testing::TestWithParam<int> {
 protected:
  int n() const { return GetParam(); }
  at::Tensor part(int i) const {
    return random_tensor(before_.sizes(), before_.scalar_type(), 30 + static_cast<uint64_t>(i));
  }
  std::vector<at::Tensor> parts() const {
    std::vector<at::Tensor> all;
    for (int i = 0; i < n(); ++i) all.push_back(part(i));
    return all;
  }

  const Strategy strategy_{std::make_shared<OnePlaceExtended>(GetParam())};
  at::Tensor before_ = random_tensor({5}, at::kFloat, 1);
};

INSTANTIATE_TEST_SUITE_P(Replicas, AggregatingVariable, testing::Values(2, 3, 4));

TEST_P(AggregatingVariable, HasOneCopyOnItsDevice) {
  const Variable v = on_write(strategy_, before_, kSum);
  EXPECT_EQ(v.components().size(), 1U);
  EXPECT_EQ(v.device().to_string(), "/job:localhost/replica:0/task:0/device:CPU:7");
  strategy_.run([&] {
    EXPECT_EQ(v.name(), "w");
    EXPECT_EQ(v.device().to_string(), "/job:localhost/replica:0/task:0/device:CPU:7");
    EXPECT_TRUE(bit_equal(v.value(), before_));
    EXPECT_TRUE(bit_equal(v + 1, before_ + 1));
  });
  std::ostringstream out;
  out << on_write(strategy_, scalar(1.F), kSum);
  EXPECT_EQ(out.str(),
            "AggregatingVariable:{\n"
            "  0: <tf.Variable 'w:0' shape=() dtype=float32, numpy=1.0>\n"
            "}");
}

TEST_P(AggregatingVariable, NeedsAnAggregationForAWriteInAReplica) {
  const Variable v = on_write(strategy_, before_, kNone);
  strategy_.run([&] {
    const std::string text = "you must specify an aggregation method to update variable 'w'";
    EXPECT_TUTTI_ERROR(v.assign(part(0)), kInvalid, "Variable::assign:", text);
    EXPECT_TUTTI_ERROR(v.assign_add(1), kInvalid, "Variable::assign_add:", text);
    EXPECT_TUTTI_ERROR(v.assign_sub(part(0)), kInvalid, "Variable::assign_sub:", text);
    EXPECT_TUTTI_ERROR(v.scatter_add({tensor({1.F}), tensor({0})}), kInvalid,
                       "Variable::scatter_add:", text);
  });
  EXPECT_TRUE(copies_are(v, before_));
}

TEST_P(AggregatingVariable, CombinesTheValuesOfReplicasAndWritesOnce) {
  for (const int64_t elements : {5, 70'000}) {
    before_ = random_tensor({elements}, at::kFloat, 1);
    for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
      const Variable v = on_write(strategy_, before_, aggregation);
      const at::Tensor combined = aggregation == kOnlyFirstReplica
                                      ? part(0)
                                      : tree_reduced(to_reduce_op(aggregation), parts());
      strategy_.run(
          [&] { EXPECT_TRUE(bit_equal(v.assign_add(part(my_id())), before_ + combined)); });
      EXPECT_TRUE(copies_are(v, before_ + combined));
      strategy_.run([&] { v.assign_sub(part(my_id())); });
      EXPECT_TRUE(copies_are(v, before_ + combined - combined));
      strategy_.run(
          [&] { EXPECT_FALSE(v.assign(part(my_id()), {.read_value = false}).defined()); });
      EXPECT_TRUE(copies_are(v, combined));
    }
  }
}

TEST_P(AggregatingVariable, TakesTheMeanButNotTheSumOfTheSameValue) {
  const at::Tensor shared = part(0);
  const Variable mean = on_write(strategy_, before_, kMean);
  const Variable sum = on_write(strategy_, before_, kSum);
  strategy_.run([&] { mean.assign(0.1); });
  EXPECT_TRUE(copies_are(mean, at::full({5}, 0.1F)));
  strategy_.run([&] { mean.assign(shared); });
  EXPECT_TRUE(copies_are(mean, shared));
  EXPECT_TUTTI_ERROR(strategy_.run([&] { sum.assign(2); }), kInvalid, "kSum");
  EXPECT_TUTTI_ERROR(strategy_.run([&] { sum.assign(shared); }), kInvalid, "kSum");
  EXPECT_TRUE(copies_are(sum, before_));
  strategy_.run([&] { sum.assign_add(0); });
  EXPECT_TRUE(copies_are(sum, before_));
}

TEST_P(AggregatingVariable, APerReplicaValueMeansItsComponent) {
  const Variable v = on_write(strategy_, before_, kSum);
  const PerReplica<at::Tensor> value(parts());
  strategy_.run([&] { v.assign(value); });
  EXPECT_TRUE(copies_are(v, tree_reduced(ReduceOp::kSum, parts())));
  v.assign(value);  // outside: the first component
  EXPECT_TRUE(copies_are(v, part(0)));
  EXPECT_TUTTI_ERROR(v.assign(PerReplica<at::Tensor>(std::vector<at::Tensor>(9, part(0)))),
                     kInvalid, "9 components", "takes " + std::to_string(n()));
}

TEST_P(AggregatingVariable, OutsideItIsWrittenOnce) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    EXPECT_TRUE(bit_equal(v.assign_add(part(0)), before_ + part(0)));
    strategy_.scope([&] { v.assign(3); });
    EXPECT_TRUE(copies_are(v, at::full({5}, 3.F)));
    const at::Tensor read = v.value();
    v.assign(4);
    EXPECT_TRUE(bit_equal(read, at::full({5}, 3.F)));
  }
}

TEST_P(AggregatingVariable, AnUpdateIsOneCall) {
  const Variable v = on_write(strategy_, before_, kNone);
  int calls = 0;
  const auto update = [&](const Variable& mine, const at::Tensor& value) {
    ++calls;
    EXPECT_EQ(get_update_replica_id(), 0);
    return mine.assign_add(value).clone();
  };
  const Mirrored<at::Tensor> result =
      strategy_.extended().update(v, update, PerReplica<at::Tensor>(parts()));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(result.size(), 1U);
  EXPECT_TRUE(bit_equal(result[0], before_ + part(0)));
  calls = 0;
  const auto results =
      strategy_.run([&] { return get_replica_context()->update(v, update, part(my_id())); });
  EXPECT_EQ(calls, 1);
  for (const at::Tensor& each : results) {
    EXPECT_TRUE(bit_equal(each, before_ + part(0) + part(0)));
  }
}

TEST_P(AggregatingVariable, ScattersAreCombined) {
  before_ = random_tensor({4, 2}, at::kDouble, 1);
  const auto slices = [&](int i) {
    return IndexedSlices(random_tensor({1, 2}, at::kDouble, 60 + static_cast<uint64_t>(i)),
                         tensor<int64_t>({i}));
  };
  for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
    const Variable v = on_write(strategy_, before_, aggregation);
    strategy_.run([&] { v.scatter_add(slices(my_id())); });
    at::Tensor expected = before_.clone();
    for (int i = 0; i < (aggregation == kOnlyFirstReplica ? 1 : n()); ++i) {
      for (int64_t c = 0; c < 2; ++c) {
        const double value = slices(i).values().data_ptr<double>()[c];
        expected.data_ptr<double>()[2 * i + c] += aggregation == kMean ? value / n() : value;
      }
    }
    EXPECT_TRUE(copies_are(v, expected)) << aggregation;
    v.scatter_sub(slices(1));
  }
  const Variable sum = on_write(strategy_, before_, kSum);
  EXPECT_TUTTI_ERROR(sum.scatter_max(slices(0)), ErrorCode::kUnimplemented, "scatter_max");
}

TEST_P(AggregatingVariable, GradientsOfReplicasDoNotMix) {
  const Variable v = on_write(strategy_, tensor({1.0, 2.0}), kSum);
  const auto gradients = strategy_.run([&] {
    for (int k = 0; k < 50; ++k) (v * (my_id() + 1.0)).sum().backward();
    return v.grad();
  });
  for (int i = 0; i < n(); ++i) {
    EXPECT_TRUE(
        bit_equal(gradients[static_cast<size_t>(i)], at::full({2}, 50.0 * (i + 1), at::kDouble)));
  }
  strategy_.run([&] {
    EXPECT_TRUE(strategy_.extended().value_container(v.value())->is_same(v));
    EXPECT_EQ(v.value().data_ptr(), v.components()[0].data_ptr());
  });
}

TEST_P(AggregatingVariable, IsMadeTogetherInARun) {
  const auto made = strategy_.run([] { return Variable(1.0, {.aggregation = kMean}); });
  for (const Variable& v : made) EXPECT_TRUE(v.is_same(made[0]));
  EXPECT_EQ(made[0].components().size(), 1U);
}

TEST_P(AggregatingVariable, CountsAsOneValueForReduceAndGather) {
  const Variable v = on_write(strategy_, before_, kSum);
  EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kMean, v), before_));
  EXPECT_TUTTI_ERROR(strategy_.reduce(ReduceOp::kSum, v), kInvalid, "not per replica");
  EXPECT_TRUE(bit_equal(strategy_.gather(v, 0), before_));
  EXPECT_EQ(strategy_.local_results(v).size(), 1U);
}

}  // namespace tutti::aggregating_variable_test
