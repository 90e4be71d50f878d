// SPDX-License-Identifier: Apache-2.0
//
// The members of StrategyExtended that place and combine values and update variables.

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/device/device_scope.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/values/variable.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::strategy_extended_test {

using namespace test::variable_words;
using test::bit_equal;
using test::copies_are;
using test::cpus;
using test::make_variable;
using test::mirrored_cpus;
using test::my_id;
using test::on_read;
using test::on_write;
using test::random_tensor;
using test::scalar;
using test::tensor;
using test::tree_reduced;

std::string full_name(const std::string& device) {
  return "/job:localhost/replica:0/task:0/device:" + device;
}

class StrategyExtendedOf : public testing::TestWithParam<int> {
 protected:
  int n() const { return GetParam(); }
  StrategyExtended& extended() const { return strategy_.extended(); }

  template <class F>
  auto per_replica(const F& fn) const {
    using T = std::decay_t<std::invoke_result_t<const F&, int>>;
    std::vector<T> components;
    for (int i = 0; i < n(); ++i) components.push_back(fn(i));
    return PerReplica<T>(std::move(components));
  }
  std::vector<at::Tensor> parts(int64_t elements, at::ScalarType dtype, uint64_t seed = 0) const {
    std::vector<at::Tensor> all;
    for (int i = 0; i < n(); ++i) {
      all.push_back(random_tensor({elements}, dtype, 10 * seed + static_cast<uint64_t>(i)));
    }
    return all;
  }

  const MirroredStrategy strategy_ = mirrored_cpus(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Replicas, StrategyExtendedOf, testing::Values(1, 2, 3, 4));

// ---- reduce_to -----------------------------------------------------------------------

TEST_P(StrategyExtendedOf, ReduceToPutsTheResultOnEveryDestination) {
  for (const int64_t elements : {1, 7, 50'000}) {
    for (const auto dtype : {at::kFloat, at::kLong}) {
      const PerReplica<at::Tensor> value(parts(elements, dtype));
      const at::Tensor sum = tree_reduced(ReduceOp::kSum, parts(elements, dtype));
      const Mirrored<at::Tensor> one = extended().reduce_to(ReduceOp::kSum, value, "CPU:0");
      ASSERT_EQ(one.size(), 1U);
      EXPECT_TRUE(bit_equal(one[0], sum));
      const Mirrored<at::Tensor> all = extended().reduce_to(ReduceOp::kSum, value, value);
      ASSERT_EQ(all.size(), static_cast<size_t>(n()));
      for (const at::Tensor& each : all) EXPECT_TRUE(bit_equal(each, sum));
      for (size_t i = 1; i < all.size(); ++i) EXPECT_NE(all[i].data_ptr(), all[0].data_ptr());
      for (int i = 0; i < n(); ++i) {
        EXPECT_TRUE(bit_equal(value[static_cast<size_t>(i)],
                              parts(elements, dtype)[static_cast<size_t>(i)]));
      }
    }
  }
  const PerReplica<at::Tensor> value(parts(7, at::kDouble));
  EXPECT_TRUE(bit_equal(extended().reduce_to(ReduceOp::kMean, value, at::ones({1}))[0],
                        tree_reduced(ReduceOp::kMean, parts(7, at::kDouble))));
  EXPECT_TRUE(bit_equal(extended().reduce_to(ReduceOp::kMax, value, "CPU:9")[0],
                        tree_reduced(ReduceOp::kMax, parts(7, at::kDouble))));
}

TEST_P(StrategyExtendedOf, ReduceToDoesNotChangeAVariableThatIsADestination) {
  const Variable v = make_variable(strategy_, at::zeros({7}));
  const PerReplica<at::Tensor> value(parts(7, at::kFloat));
  const Mirrored<at::Tensor> reduced = extended().reduce_to(ReduceOp::kSum, value, v);
  EXPECT_EQ(reduced.size(), static_cast<size_t>(n()));
  EXPECT_TRUE(bit_equal(reduced[0], tree_reduced(ReduceOp::kSum, parts(7, at::kFloat))));
  EXPECT_TRUE(copies_are(v, at::zeros({7})));
}

TEST_P(StrategyExtendedOf, ReduceToTakesNests) {
  using Nest = std::tuple<at::Tensor, std::vector<double>, IndexedSlices, int>;
  const auto value = per_replica([](int i) {
    return Nest(at::full({2}, i + 1, at::kLong), {0.5, 1.0 * i},
                IndexedSlices(at::full({1, 2}, i + 1.0), tensor<int64_t>({i}), {8, 2}), i);
  });
  const auto results = extended().reduce_to(
      ReduceOp::kSum, value,
      value.size() > 1 ? Destinations(make_variable(strategy_, 1.0)) : Destinations("CPU:0"));
  ASSERT_EQ(results.size(), static_cast<size_t>(n()));
  const int ids = n() * (n() - 1) / 2;
  for (const auto& [dense, numbers, sparse, integer] : results) {
    EXPECT_TRUE(bit_equal(dense, at::full({2}, ids + n(), at::kLong)));
    EXPECT_EQ(numbers, (std::vector<double>{0.5 * n(), 1.0 * ids}));
    EXPECT_EQ(integer, ids);
    ASSERT_EQ(sparse.values().size(0), n());
    for (int i = 0; i < n(); ++i) {
      EXPECT_EQ(sparse.indices()[i].item<int64_t>(), i);
      EXPECT_EQ(sparse.values()[i][1].item<float>(), static_cast<float>(i + 1));
    }
    EXPECT_EQ(sparse.dense_shape(), (std::vector<int64_t>{8, 2}));
  }
}

TEST_P(StrategyExtendedOf, ReduceToOfAValueThatIsTheSameEverywhere) {
  const at::Tensor value = tensor({0.1, 0.2});
  const auto mean = extended().reduce_to(ReduceOp::kMean, value, make_variable(strategy_, 1.0));
  ASSERT_EQ(mean.size(), static_cast<size_t>(n()));
  for (const at::Tensor& each : mean) {
    EXPECT_TRUE(bit_equal(each, value));
    EXPECT_NE(each.data_ptr(), value.data_ptr());
  }
  const Mirrored<at::Tensor> mirrored(std::vector<at::Tensor>(static_cast<size_t>(n()), value));
  EXPECT_TRUE(bit_equal(extended().reduce_to(ReduceOp::kMean, mirrored, "CPU:0")[0], value));
  const IndexedSlices slices(at::ones({1, 2}), tensor<int64_t>({3}));
  const auto copies = extended().reduce_to(ReduceOp::kMean, slices, "CPU:1");
  EXPECT_TRUE(bit_equal(copies[0].values(), at::ones({1, 2})));
  EXPECT_EQ(extended().reduce_to(ReduceOp::kMean, 2.5, "CPU:0")[0], 2.5);
  if (n() == 1) {
    EXPECT_TRUE(bit_equal(extended().reduce_to(ReduceOp::kSum, value, "CPU:0")[0], value));
    return;
  }
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, value, "CPU:0"), kInvalid,
                     "not per replica", "kSum");
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, mirrored, "CPU:0"), kInvalid, "kSum");
}

TEST_P(StrategyExtendedOf, ReduceToOfAVariable) {
  const Variable mirrored = make_variable(strategy_, tensor({0.1, 0.2}));
  EXPECT_TRUE(
      bit_equal(extended().reduce_to(ReduceOp::kMean, mirrored, "CPU:0")[0], tensor({0.1, 0.2})));
  const Variable metric = on_read(strategy_, at::zeros({7}), kSum);
  strategy_.run([&] { metric.assign(parts(7, at::kFloat)[static_cast<size_t>(my_id())]); });
  EXPECT_TRUE(bit_equal(extended().reduce_to(ReduceOp::kMean, metric, "CPU:0")[0],
                        tree_reduced(ReduceOp::kMean, parts(7, at::kFloat))));
  const Variable foreign = make_variable(mirrored_cpus(2), 1.0, {.name = "f"});
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kMean, foreign, "CPU:0"), kInvalid, "'f'",
                     "belongs to");
}

TEST_P(StrategyExtendedOf, ReduceToRefusesWhatCannotBeReduced) {
  const PerReplica<at::Tensor> value(parts(3, at::kFloat));
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, value, ""), kInvalid, "empty");
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, value, "toaster"), kInvalid, "toaster");
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, value, at::Tensor()), kInvalid,
                     "undefined");
  EXPECT_TUTTI_ERROR(Destinations(std::vector<DeviceSpec>()), kInvalid, "empty");
  const PerReplica<at::Tensor> many(std::vector<at::Tensor>(9, at::ones({1})));
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, many, "CPU:0"), kInvalid, "9 components");
  EXPECT_TUTTI_ERROR(
      extended().reduce_to(ReduceOp::kSum, per_replica([](int) { return at::Tensor(); }), "CPU:0"),
      kInvalid, "undefined");
  EXPECT_TUTTI_ERROR(
      extended().reduce_to(ReduceOp::kMean, per_replica([](int i) { return i; }), "CPU:0"),
      kInvalid, "integer");
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, value, "CPU:0", {.bytes_per_pack = -1}),
                     kInvalid, "bytes_per_pack");
  if (n() == 1) return;
  EXPECT_TUTTI_ERROR(
      extended().reduce_to(ReduceOp::kSum, per_replica([](int i) { return at::ones({i + 1}); }),
                           "CPU:0"),
      kInvalid, "float32[1]", "float32[2]");
  EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, per_replica([](int i) {
                                            return std::vector<double>(static_cast<size_t>(i), 1.0);
                                          }),
                                          "CPU:0"),
                     kInvalid, "structure");
}

TEST_P(StrategyExtendedOf, CombiningAndPlacingNeedCrossReplicaContext) {
  const PerReplica<at::Tensor> value(parts(3, at::kFloat));
  const Variable v = make_variable(strategy_, 1.0);
  const auto check = [&](const std::string& text) {
    EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kSum, value, "CPU:0"), kPrecondition,
                       "reduce_to", text);
    EXPECT_TUTTI_ERROR(extended().reduce_to(ReduceOp::kMean, at::ones({1}), "CPU:0"), kPrecondition,
                       text);
    EXPECT_TUTTI_ERROR(extended().batch_reduce_to<at::Tensor>(ReduceOp::kSum, {{value, "CPU:0"}}),
                       kPrecondition, text);
    EXPECT_TUTTI_ERROR(extended().broadcast_to(at::ones({1}), "CPU:0"), kPrecondition,
                       "broadcast_to", text);
    EXPECT_TUTTI_ERROR(extended().update_non_slot("CPU:0", [] {}), kPrecondition, "update_non_slot",
                       text);
  };
  strategy_.run([&] { check("requires cross-replica context"); });
  const MirroredStrategy other = mirrored_cpus(2);
  other.scope([&] {
    check("mixing different strategies");
    EXPECT_TUTTI_ERROR(extended().update(v, [](const Variable&) {}), kPrecondition, "update",
                       "mixing different strategies");
  });
  strategy_.run([&] {
    get_replica_context()->merge_call([&](const Strategy& strategy) {
      strategy.extended().reduce_to(ReduceOp::kSum, value, "CPU:0");
    });
  });
}

// ---- batch_reduce_to -------------------------------------------------------------------

TEST_P(StrategyExtendedOf, BatchReduceToKeepsTheOrderOfMixedDestinations) {
  const Variable v = make_variable(strategy_, 1.0);
  std::vector<std::pair<PerReplica<at::Tensor>, Destinations>> pairs;
  for (uint64_t k = 0; k < 6; ++k) {
    const auto elements = static_cast<int64_t>(1 + 3'000 * k);
    pairs.emplace_back(PerReplica<at::Tensor>(parts(elements, at::kFloat, k)),
                       k % 3 == 0 ? Destinations("CPU:2") : Destinations(v));
  }
  const auto check = [&](const CommunicationOptions& options) {
    const auto results = extended().batch_reduce_to(ReduceOp::kMean, pairs, options);
    ASSERT_EQ(results.size(), 6U);
    for (uint64_t k = 0; k < 6; ++k) {
      const auto elements = static_cast<int64_t>(1 + 3'000 * k);
      EXPECT_EQ(results[k].size(), k % 3 == 0 ? 1U : static_cast<size_t>(n()));
      const at::Tensor mean = tree_reduced(ReduceOp::kMean, parts(elements, at::kFloat, k));
      for (const at::Tensor& each : results[k]) EXPECT_TRUE(bit_equal(each, mean));
    }
  };
  check({});
  check({.bytes_per_pack = 10'000});
  pairs.erase(pairs.begin() + 3);
  pairs.erase(pairs.begin());
  const auto results = extended().batch_reduce_to(ReduceOp::kSum, pairs);
  EXPECT_TRUE(bit_equal(results[3][0], tree_reduced(ReduceOp::kSum, parts(15'001, at::kFloat, 5))));
  EXPECT_TRUE(extended().batch_reduce_to<at::Tensor>(ReduceOp::kSum, {}).empty());
}

TEST_P(StrategyExtendedOf, BatchReduceToTakesSeveralInt32Values) {
  const Variable v = make_variable(strategy_, 1.0);
  std::vector<std::pair<PerReplica<at::Tensor>, Destinations>> pairs;
  for (uint64_t k = 0; k < 3; ++k) pairs.emplace_back(PerReplica(parts(4, at::kInt, k)), v);
  const auto results = extended().batch_reduce_to(ReduceOp::kSum, pairs);
  for (uint64_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(bit_equal(results[k][0], tree_reduced(ReduceOp::kSum, parts(4, at::kInt, k))));
  }
}

TEST_P(StrategyExtendedOf, BatchReduceToTakesSlicesAndNests) {
  using Nest = std::pair<IndexedSlices, double>;
  const auto value = per_replica([](int i) {
    return Nest(IndexedSlices(at::full({1, 1}, 3.0 * (i + 1)), tensor<int64_t>({i})), i);
  });
  const auto results =
      extended().batch_reduce_to<Nest>(ReduceOp::kMean, {{value, "CPU:0"}, {value, "CPU:1"}});
  ASSERT_EQ(results.size(), 2U);
  for (const Mirrored<Nest>& each : results) {
    EXPECT_EQ(each[0].second, (n() - 1) / 2.0);
    ASSERT_EQ(each[0].first.values().size(0), n());
    for (int i = 0; i < n(); ++i) {
      EXPECT_EQ(each[0].first.values()[i].item<float>(),
                3.F * static_cast<float>(i + 1) / static_cast<float>(n()));
    }
  }
}

// ---- broadcast_to -----------------------------------------------------------------------

TEST_P(StrategyExtendedOf, BroadcastToCopiesToEveryDestination) {
  const at::Tensor value = tensor({1.0, 2.0});
  const Variable v = make_variable(strategy_, 1.0);
  const Mirrored<at::Tensor> copies = extended().broadcast_to(value, v);
  ASSERT_EQ(copies.size(), static_cast<size_t>(n()));
  for (const at::Tensor& copy : copies) {
    EXPECT_TRUE(bit_equal(copy, value));
    EXPECT_NE(copy.data_ptr(), value.data_ptr());
  }
  EXPECT_EQ(extended().broadcast_to(value, "CPU:3").size(), 1U);
  const int number = extended().broadcast_to(3, v);
  EXPECT_EQ(number, 3);
  EXPECT_TUTTI_ERROR(extended().broadcast_to(at::Tensor(), v), kInvalid, "undefined");
}

// ---- update -----------------------------------------------------------------------------

TEST_P(StrategyExtendedOf, UpdateCallsTheFunctionForEveryCopyOnItsDevice) {
  const Variable v = make_variable(strategy_, tensor({1.0}), {.name = "v"});
  std::vector<int> calls;
  const auto added = extended().update(
      v,
      [&](const Variable& mine, const at::Tensor& x, double y, const Variable& whole, int z) {
        const int i = *get_update_replica_id();
        calls.push_back(i);
        EXPECT_TRUE(in_cross_replica_context());
        EXPECT_TRUE(mine.is_same(v));
        EXPECT_TRUE(whole.is_same(v));
        EXPECT_EQ(current_device()->to_string(), full_name("CPU:" + std::to_string(i)));
        EXPECT_EQ(mine.name(), i == 0 ? "v" : "v/replica_" + std::to_string(i));
        EXPECT_EQ(mine.device().to_string(), full_name("CPU:" + std::to_string(i)));
        return mine.assign_add(x + y + z).clone();
      },
      per_replica([](int i) { return tensor({10.0 * i}); }), 0.5, v,
      Mirrored<int>(std::vector<int>(static_cast<size_t>(n()), 3)));
  ASSERT_EQ(added.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(calls[static_cast<size_t>(i)], i);
    EXPECT_TRUE(bit_equal(added[static_cast<size_t>(i)], tensor({4.5 + 10 * i})));
  }
  EXPECT_TRUE(copies_are(v, [](int i) { return tensor({4.5 + 10 * i}); }));
  EXPECT_EQ(get_update_replica_id(), std::nullopt);
}

TEST_P(StrategyExtendedOf, UpdateReturnsAMirroredAVectorOrNothing) {
  const Variable v = make_variable(strategy_, 1.0);
  const auto id = [](const Variable&) { return *get_update_replica_id(); };
  const Mirrored<int> grouped = extended().update(v, id);
  const std::vector<int> ungrouped = extended().update(kUngrouped, v, id);
  ASSERT_EQ(grouped.size(), static_cast<size_t>(n()));
  ASSERT_EQ(ungrouped.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(grouped[static_cast<size_t>(i)], i);
    EXPECT_EQ(ungrouped[static_cast<size_t>(i)], i);
  }
  const auto nothing = [](const Variable& mine) { mine.assign_add(1); };
  static_assert(std::is_void_v<decltype(extended().update(v, nothing))>);
  static_assert(std::is_void_v<decltype(extended().update(kUngrouped, v, nothing))>);
  extended().update(v, nothing);
  extended().update(kUngrouped, v, nothing);
  EXPECT_TRUE(copies_are(v, scalar(3.F)));
  const Mirrored<bool> flags = extended().update(v, [](const Variable&) { return true; });
  EXPECT_TRUE(flags[0]);
}

TEST_P(StrategyExtendedOf, UpdateInAReplicaGivesEachCopyItsReplicasArguments) {
  const Variable v = make_variable(strategy_, tensor({1.0}));
  const auto values = per_replica([](int i) { return 100 * i; });
  const auto add = [](const Variable& mine, const at::Tensor& x, int y) {
    EXPECT_TRUE(in_cross_replica_context());
    return mine.assign_add(x + y).clone();
  };
  const auto results = strategy_.run([&] {
    const auto mirrored = extended().update(v, add, tensor({10.0 * my_id()}), values);
    EXPECT_EQ(mirrored.size(), static_cast<size_t>(n()));
    return extended().update(kUngrouped, v, add, tensor({1.0}), 0);
  });
  EXPECT_TRUE(copies_are(v, [](int i) { return tensor({2.0 + 110 * i}); }));
  for (const std::vector<at::Tensor>& each : results) {
    for (int i = 0; i < n(); ++i) {
      EXPECT_TRUE(bit_equal(each[static_cast<size_t>(i)], tensor({2.0 + 110 * i})));
    }
  }
}

TEST_P(StrategyExtendedOf, AReplicasContextUpdatesAndReturnsItsResult) {
  const Variable v = make_variable(strategy_, tensor({1.0}));
  const auto results = strategy_.run([&] {
    ReplicaContext* const context = get_replica_context();
    context->update(v, [](const Variable& mine) { mine.assign_add(1.0); });
    return context->update(
        v,
        [](const Variable& mine, int x) {
          return mine.assign_add(static_cast<double>(x)).item<double>();
        },
        my_id());
  });
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], 2.0 + i);
}

TEST_P(StrategyExtendedOf, UpdateRefusesWhatDoesNotBelongTogether) {
  const Variable v = make_variable(strategy_, 1.0, {.name = "v"});
  const Variable plain(1.0, {.name = "plain"});
  const auto nothing = [](const Variable&) {};
  EXPECT_TUTTI_ERROR(extended().update(plain, nothing), kInvalid, "update", "'plain'",
                     "DefaultStrategy");
  const auto take = [](const Variable&, int) {};
  const PerReplica<int> many(std::vector<int>(9, 1));
  if (n() == 1) return;
  EXPECT_TUTTI_ERROR(extended().update(v, take, many), kInvalid, "9 components", "copies");
  const Variable w = make_variable(strategy_, 1.0, {.name = "w"});
  EXPECT_TUTTI_ERROR(
      strategy_.run([&] { get_replica_context()->update(my_id() == 1 ? w : v, nothing); }),
      kInvalid, "'v'", "'w'");
  EXPECT_TUTTI_ERROR(strategy_.run([&] { extended().update(my_id() == 1 ? w : v, nothing); }),
                     kInvalid, "'v'", "'w'");
}

TEST_P(StrategyExtendedOf, AnExceptionInAnUpdateReachesTheCaller) {
  const Variable v = make_variable(strategy_, 1.0);
  const auto fail = [](const Variable&) { throw std::logic_error("no"); };
  EXPECT_THROW(extended().update(v, fail), std::logic_error);
  EXPECT_EQ(get_update_replica_id(), std::nullopt);
  EXPECT_THROW(strategy_.run([&] { get_replica_context()->update(v, fail); }), std::logic_error);
  strategy_.run([&] { v.assign(2); });
  EXPECT_TRUE(copies_are(v, scalar(2.F)));
}

TEST_P(StrategyExtendedOf, AScopeInsideOfAnUpdateMeansAllCopiesAgain) {
  const Variable v = make_variable(strategy_, 1.0);
  extended().update(v, [&](const Variable& mine) {
    mine.assign_add(1);
    strategy_.scope([&] {
      EXPECT_EQ(get_update_replica_id(), std::nullopt);
      v.assign_add(10);
    });
    EXPECT_TRUE(get_update_replica_id().has_value());
  });
  EXPECT_TRUE(copies_are(v, scalar(2.F + 10 * static_cast<float>(n()))));
}

TEST_P(StrategyExtendedOf, UpdateNonSlotCallsTheFunctionForEachDevice) {
  std::vector<std::string> seen;
  const auto fn = [&](int x) {
    seen.push_back(current_device()->to_string());
    return x + *get_update_replica_id();
  };
  const Destinations devices = extended().non_slot_devices({});
  ASSERT_EQ(devices.size(), static_cast<size_t>(n()));
  const Mirrored<int> grouped =
      extended().update_non_slot(devices, fn, per_replica([](int i) { return 10 * i; }));
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(grouped[static_cast<size_t>(i)], 11 * i);
    EXPECT_EQ(seen[static_cast<size_t>(i)], full_name("CPU:" + std::to_string(i)));
  }
  const std::vector<int> one = extended().update_non_slot(kUngrouped, "CPU:5", fn, 7);
  EXPECT_EQ(one, std::vector<int>{7});
  EXPECT_EQ(seen.back(), full_name("CPU:5"));
  int calls = 0;
  extended().update_non_slot(devices, [&] { ++calls; });
  EXPECT_EQ(calls, n());
}

// ---- asking --------------------------------------------------------------------------------

TEST_P(StrategyExtendedOf, ContainersAreFoundByTheirComponents) {
  const Variable v = make_variable(strategy_, tensor({1.0}));
  for (const at::Tensor& component : v.components()) {
    const std::optional<Variable> container = extended().value_container(component);
    ASSERT_TRUE(container.has_value());
    EXPECT_TRUE(container->is_same(v));
  }
  EXPECT_TRUE(extended().value_container(v).is_same(v));
  strategy_.run([&] { EXPECT_TRUE(extended().value_container(v.value())->is_same(v)); });
  EXPECT_FALSE(extended().value_container(at::ones({1})).has_value());
  EXPECT_FALSE(extended().value_container(v.read_value()).has_value());
  EXPECT_FALSE(extended().value_container(v.components()[0].detach()).has_value());
  EXPECT_FALSE(mirrored_cpus(2).extended().value_container(v.components()[0]).has_value());
  at::Tensor orphan;
  {
    std::vector<Variable> many;
    for (int i = 0; i < 200; ++i) many.push_back(make_variable(strategy_, i));
    orphan = many[50].components()[0];
    EXPECT_TRUE(extended().value_container(orphan)->is_same(many[50]));
  }
  EXPECT_FALSE(extended().value_container(orphan).has_value());
}

TEST_P(StrategyExtendedOf, ReadVarCombinesOnReadAndCopiesOthers) {
  const Variable metric = on_read(strategy_, scalar<int64_t>(2), kSum);
  EXPECT_EQ(extended().read_var(metric).item<int64_t>(), 2 * n());
  const Variable v = make_variable(strategy_, tensor({1.0}));
  const at::Tensor read = extended().read_var(v);
  v.assign(5.0);
  EXPECT_TRUE(bit_equal(read, tensor({1.0})));
  const Variable plain(1.0, {.name = "plain"});
  EXPECT_TUTTI_ERROR(extended().read_var(plain), kInvalid, "read_var", "'plain'");
}

TEST_P(StrategyExtendedOf, VariablesOfTheStrategyAreKnown) {
  const Variable v = make_variable(strategy_, 1.0);
  const Variable plain(1.0);
  const StrategyExtended& by_default = *default_strategy_extended();
  EXPECT_TRUE(extended().variable_created_in_scope(v));
  EXPECT_FALSE(extended().variable_created_in_scope(plain));
  EXPECT_FALSE(by_default.variable_created_in_scope(v));
  EXPECT_TRUE(by_default.variable_created_in_scope(plain));
  EXPECT_FALSE(mirrored_cpus(2).extended().variable_created_in_scope(v));
}

TEST_P(StrategyExtendedOf, DevicesAndFlags) {
  const auto by_replica = extended().worker_devices_by_replica();
  ASSERT_EQ(by_replica.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) {
    const auto& devices = by_replica[static_cast<size_t>(i)];
    ASSERT_EQ(devices.size(), 1U);
    EXPECT_EQ(devices[0].to_string(), full_name("CPU:" + std::to_string(i)));
  }
  EXPECT_EQ(extended().parameter_devices(), extended().worker_devices());
  EXPECT_EQ(strategy_.cluster_resolver(), nullptr);
  EXPECT_FALSE(extended().require_static_shapes());
  EXPECT_FALSE(extended().between_graph());
  EXPECT_TRUE(extended().should_init());
  EXPECT_TRUE(extended().should_checkpoint());
  EXPECT_TRUE(extended().should_save_summary());
  EXPECT_FALSE(extended().in_multi_worker_mode());
}

TEST(StrategyExtendedOthers, NonSlotDevices) {
  const OneDeviceStrategy one("CPU:3");
  const Destinations devices = one.extended().non_slot_devices({make_variable(one, 1.0)});
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices.devices()[0].to_string(), full_name("CPU:3"));
  const MirroredStrategy mirrored = mirrored_cpus(2);
  const std::vector<Variable> both = {make_variable(one, 1.0, {.name = "a"}),
                                      make_variable(mirrored, 1.0, {.name = "b"})};
  EXPECT_EQ(mirrored.extended().non_slot_devices(both).size(), 2U);
  // The default strategy: where the variable with the smallest name lies.
  EXPECT_EQ(default_strategy_extended()->non_slot_devices(both).devices(), both[0].devices());
  EXPECT_EQ(default_strategy_extended()->non_slot_devices({both[1]}).size(), 2U);
  EXPECT_EQ(default_strategy_extended()->non_slot_devices({}).size(), 1U);
}

TEST(StrategyExtendedOthers, TheDefaultStrategyUpdates) {
  const Variable plain(1.0);
  const auto result = default_strategy_extended()->update(plain, [](const Variable& mine) {
    EXPECT_EQ(get_update_replica_id(), 0);
    return mine.assign_add(2).item<float>();
  });
  EXPECT_EQ(result[0], 3.F);
}

TEST(StrategyExtendedOthers, DestinationsOfValues) {
  const auto names = [](const Destinations& destinations) {
    std::string text;
    for (const DeviceSpec& device : destinations.devices()) text += device.short_name() + " ";
    return text;
  };
  EXPECT_EQ(names("CPU:3"), "CPU:3 ");
  EXPECT_EQ(names(std::string("/device:CPU:1")), "CPU:1 ");
  EXPECT_EQ(names(DeviceSpec::canonical("CPU:2")), "CPU:2 ");
  EXPECT_EQ(names(at::ones({1})), "CPU:0 ");
  EXPECT_EQ(names(IndexedSlices(at::ones({1, 1}), tensor({0}))), "CPU:0 ");
  EXPECT_EQ(names(PerReplica<at::Tensor>({at::ones({1}), at::ones({1})})), "CPU:0 CPU:1 ");
  EXPECT_EQ(names(Mirrored<at::Tensor>({at::ones({1})})), "CPU:0 ");
  EXPECT_EQ(names(make_variable(MirroredStrategy({"CPU:4", "CPU:2"}), 1.0)), "CPU:4 CPU:2 ");
}

TEST(StrategyExtendedOthers, DestinationsOfANestAreThoseOfItsFirstTensor) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const auto pairs = strategy.run([] { return std::pair(1.5, at::full({2}, 1.0 + my_id())); });
  const auto reduced = strategy.extended().reduce_to(ReduceOp::kSum, pairs, pairs);
  ASSERT_EQ(reduced.size(), 2U);
  EXPECT_EQ(reduced[1].first, 3);
  EXPECT_TRUE(at::equal(reduced[1].second, at::full({2}, 3.0)));
  const PerReplica<double> numbers({1.0, 2.0});
  EXPECT_TUTTI_ERROR(Destinations{numbers}, ErrorCode::kInvalidArgument, "no tensor");
}

// ---- Strategy's members with variables -------------------------------------------------------

TEST_P(StrategyExtendedOf, ReduceOfVariables) {
  const Variable v = make_variable(strategy_, tensor({0.1, 0.2}), {.aggregation = kNone});
  at::Tensor mean = strategy_.reduce(ReduceOp::kMean, v);
  EXPECT_TRUE(bit_equal(mean, tensor({0.1, 0.2})));
  EXPECT_FALSE(mean.requires_grad());
  mean.fill_(0);
  EXPECT_TRUE(copies_are(v, tensor({0.1, 0.2})));
  EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kMax, v, 0), scalar(0.2)));
  if (n() > 1) {
    EXPECT_TUTTI_ERROR(strategy_.reduce(ReduceOp::kSum, v), kInvalid, "not per replica", "kSum");
  } else {
    EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kSum, v), tensor({0.1, 0.2})));
  }
  for (const VariableAggregation aggregation : {kNone, kSum, kMean}) {
    const Variable metric = on_read(strategy_, at::zeros({7}), aggregation);
    strategy_.run([&] { metric.assign(parts(7, at::kFloat)[static_cast<size_t>(my_id())]); });
    EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kSum, metric),
                          tree_reduced(ReduceOp::kSum, parts(7, at::kFloat))));
  }
  EXPECT_TUTTI_ERROR(strategy_.run([&] { strategy_.reduce(ReduceOp::kMean, v); }), kPrecondition,
                     "reduce");
  const Variable plain(tensor({3.0}));
  EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kMean, plain), tensor({3.0})));
}

TEST_P(StrategyExtendedOf, GatherOfVariables) {
  const Variable v = make_variable(strategy_, tensor({1, 2}).reshape({2, 1}));
  const at::Tensor all = strategy_.gather(v, 0);
  ASSERT_EQ(all.sizes(), at::IntArrayRef({2 * n(), 1}));
  for (int i = 0; i < 2 * n(); ++i) EXPECT_EQ(all[i].item<int>(), i % 2 + 1);
  EXPECT_EQ(strategy_.gather(v, 1).sizes(), at::IntArrayRef({2, n()}));
  const Variable metric = on_read(strategy_, tensor({0}), kNone);
  strategy_.run([&] { metric.assign(my_id()); });
  const at::Tensor ids = strategy_.gather(metric, 0);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(ids[i].item<int>(), i);
}

TEST_P(StrategyExtendedOf, LocalResultsOfVariablesShareTheirMemory) {
  const Variable metric = on_read(strategy_, tensor({0}), kNone);
  strategy_.run([&] { metric.assign(my_id()); });
  const std::vector<at::Tensor> results = strategy_.local_results(metric);
  ASSERT_EQ(results.size(), static_cast<size_t>(n()));
  for (int i = 0; i < n(); ++i) {
    EXPECT_TRUE(
        results[static_cast<size_t>(i)].is_same(metric.components()[static_cast<size_t>(i)]));
    EXPECT_EQ(results[static_cast<size_t>(i)].item<int>(), i);
  }
}

}  // namespace tutti::strategy_extended_test
