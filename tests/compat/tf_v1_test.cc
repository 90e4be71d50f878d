// SPDX-License-Identifier: Apache-2.0
//
// The old names beyond the documents' examples: every name, its edge cases and its errors.

#include "tutti/compat/tf_v1.h"

#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/data/dataset.h"
#include "tutti/group/worker_group.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/compat/document_examples.h"
#include "tests/support/expect_error.h"
#include "tests/support/free_addresses.h"
#include "tests/support/tensors.h"

namespace tutti::compat_test {

using Floats = std::vector<float>;

const std::vector<std::string> kTwo = {"CPU:0", "CPU:1"};

ClusterSpec one_worker() { return ClusterSpec{{"worker", {"127.0.0.1:1"}}}; }

TEST(V1Strategy, IsMadeFromAnyStrategy) {
  const v1::Strategy from_mirrored = MirroredStrategy(kTwo);
  EXPECT_EQ(from_mirrored.num_replicas_in_sync(), 2);
  const v1::Strategy from_one = OneDeviceStrategy("CPU:0");
  EXPECT_EQ(from_one.experimental_run_v2([] { return 3; }).only(), 3);
  const tutti::Strategy back = from_mirrored;
  EXPECT_TRUE(back == from_mirrored);
}

TEST(V1Strategy, KindsHaveTheirOldConstructors) {
  EXPECT_EQ(
      v1::MirroredStrategy(kTwo, std::make_shared<ReductionToOneDevice>()).num_replicas_in_sync(),
      2);
  EXPECT_EQ(v1::OneDeviceStrategy("/cpu:0").num_replicas_in_sync(), 1);
  EXPECT_EQ(v1::CentralStorageStrategy(kTwo, "CPU:0").num_replicas_in_sync(), 2);
  EXPECT_EQ(
      v1::MultiWorkerMirroredStrategy(CommunicationImplementation::kAuto).num_replicas_in_sync(),
      1);
}

TEST(V1Strategy, CurrentStrategyHasTheOldNames) {
  const v1::MirroredStrategy strategy(kTwo);
  EXPECT_FALSE(v1::has_distribution_strategy());
  EXPECT_FALSE(v1::get_cross_replica_context().has_value());
  strategy.scope([&] {
    EXPECT_TRUE(v1::has_distribution_strategy());
    EXPECT_TRUE(v1::get_distribution_strategy() == strategy);
    EXPECT_TRUE(v1::get_cross_replica_context() == strategy);
    EXPECT_EQ(v1::get_strategy().experimental_run_v2([] { return 1; }).size(), 2U);
  });
  EXPECT_EQ(v1::get_loss_reduction(), v1::ReduceOp::kSum);
  v1::experimental_set_strategy(strategy);
  EXPECT_TRUE(v1::get_strategy() == strategy);
  v1::experimental_set_strategy(std::nullopt);
  EXPECT_FALSE(v1::has_strategy());
}

TEST(V1Strategy, RunsWithoutAnIterator) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto ids =
      strategy.experimental_run([] { return get_replica_context()->replica_id_in_sync_group(); });
  EXPECT_EQ(ids[1], 1);
  strategy.group(ids);
}

TEST(V1Strategy, SpreadsTheTuplesOfAnIterator) {
  const v1::MirroredStrategy strategy(kTwo);
  const at::Tensor x = at::arange(4, at::kFloat);
  const auto dataset = data::from_tensor_slices(std::tuple(x, x * 10)).batch(4);
  const auto iterator = strategy.make_dataset_iterator(dataset);
  const auto sums = strategy.experimental_run(
      [](const at::Tensor& a, const at::Tensor& b) { return (a + b).sum(); }, iterator);
  EXPECT_EQ(sums[0].item<float>(), 11);
  EXPECT_EQ(sums[1].item<float>(), 55);
}

TEST(V1InputIterator, RestartsWhenInitializedAgain) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto iterator = strategy.make_dataset_iterator(data::range(4).batch(2));
  iterator.initialize();
  EXPECT_EQ(floats(iterator.get_next()[0]), Floats{0});
  EXPECT_EQ(floats(iterator.get_next()[0]), Floats{2});
  EXPECT_TUTTI_ERROR(iterator.get_next(), ErrorCode::kNotFound, "end");
  EXPECT_FALSE(iterator.get_next_as_optional().has_value());
  iterator.initialize();
  EXPECT_EQ(floats(iterator.get_next()[1]), Floats{1});
}

TEST(V1InputIterator, CopiesShareThePosition) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto iterator = strategy.make_dataset_iterator(data::range(4).batch(2));
  const auto copy = iterator;
  iterator.get_next();
  EXPECT_EQ(floats(copy.get_next()[0]), Floats{2});
}

TEST(V1InputIterator, RefusesABatchSizeThatReplicasCannotShare) {
  const v1::MirroredStrategy strategy(kTwo);
  EXPECT_TUTTI_ERROR(strategy.make_dataset_iterator(data::range(9).batch(3)),
                     ErrorCode::kInvalidArgument,
                     "a batch of 3 rows cannot be divided evenly across 2 replicas");
  // Without a known size, the first batch decides.
  const auto unknown = strategy.make_dataset_iterator(
      data::range(9).batch(3).map([](const at::Tensor& x) { return x * 2; }));
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_TUTTI_ERROR(unknown.get_next(), ErrorCode::kInvalidArgument, "3 rows", "2 replicas");
    if (attempt == 1) unknown.initialize();
  }
}

TEST(V1InputIterator, SharesALastBatchThatIsNotFull) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto iterator = strategy.make_dataset_iterator(
      data::range(7).batch(4).map([](const at::Tensor& x) { return x + 0; }));
  EXPECT_EQ(floats(iterator.get_next()[1]), (Floats{2, 3}));
  const auto last = iterator.get_next();
  EXPECT_EQ(last.global_rows(), 3);
  EXPECT_FALSE(iterator.get_next_as_optional().has_value());
}

TEST(V1InputIterator, TakesElementsFromAFunctionPerCall) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto input_fn = [](const InputContext&) {
    return [n = int64_t{0}]() mutable -> std::optional<at::Tensor> {
      if (n == 4) return std::nullopt;
      return at::full({1}, n++);
    };
  };
  const auto iterator = strategy.make_input_fn_iterator(input_fn);
  for (int pass = 0; pass < 2; ++pass) {
    iterator.initialize();
    EXPECT_EQ(floats(iterator.get_next()[1]), Floats{1});
    EXPECT_EQ(floats(iterator.get_next()[0]), Floats{2});
    EXPECT_FALSE(iterator.get_next_as_optional().has_value());
  }
  const auto endless = strategy.make_input_fn_iterator([](const InputContext& context) {
    return [size = context.get_per_replica_batch_size(6)] { return at::ones({size}); };
  });
  EXPECT_EQ(endless.get_next()[1].size(0), 3);
}

TEST(V1InputIterator, RefusesPipelinesPerReplica) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto input_fn = [](const InputContext&) { return data::range(4).batch(2); };
  EXPECT_TUTTI_ERROR(strategy.make_input_fn_iterator(input_fn, InputReplicationMode::kPerReplica),
                     ErrorCode::kInvalidArgument, "input replication mode not supported",
                     "kPerWorker");
}

TEST(V1InputIterator, DescribesItsElements) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto iterator =
      strategy.make_dataset_iterator(data::range(8).batch(4, {.drop_remainder = true}));
  EXPECT_EQ(to_text(iterator.element_spec()[1]), "int64[2]");
}

TEST(V1NumpyDataset, StacksListsOfArrays) {
  const v1::OneDeviceStrategy strategy("CPU:0");
  const at::Tensor a = at::zeros({2, 3});
  const auto rows = [&](const auto& dataset) {
    return strategy.experimental_distribute_dataset(dataset.batch(9)).iterator().get_next().only();
  };
  EXPECT_EQ(rows(strategy.experimental_make_numpy_dataset(std::vector{a, a, a})).sizes(),
            (std::vector<int64_t>{3, 2, 3}));
  const auto [x, y] =
      rows(strategy.experimental_make_numpy_dataset(std::pair(std::vector{a, a}, at::arange(2))));
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2}));
  EXPECT_TUTTI_ERROR(strategy.experimental_make_numpy_dataset(std::vector{a, at::zeros({2})}),
                     ErrorCode::kInvalidArgument,
                     "array 1 of a list is float[2], but array 0 is float[2, 3]");
  EXPECT_TUTTI_ERROR(strategy.experimental_make_numpy_dataset(std::vector<at::Tensor>{}),
                     ErrorCode::kInvalidArgument, "empty");
  EXPECT_EQ(rows(strategy.experimental_make_numpy_dataset({a, a})).sizes(),
            (std::vector<int64_t>{2, 2, 3}));
  const auto nested = std::make_tuple(std::pair(at::arange(2), at::arange(2)));
  const auto inner = std::get<0>(rows(strategy.experimental_make_numpy_dataset(nested)));
  EXPECT_EQ(inner.second.size(0), 2);
}

TEST(V1NumpyDataset, IsNotMadeInReplicas) {
  const v1::MirroredStrategy strategy(kTwo);
  EXPECT_TUTTI_ERROR(strategy.run([&] { strategy.experimental_make_numpy_dataset(at::ones({2})); }),
                     ErrorCode::kFailedPrecondition,
                     "experimental_make_numpy_dataset: called in a replica");
}

TEST(V1Extended, SelectsComponentsAndReturnsThem) {
  const v1::MirroredStrategy strategy(kTwo);
  const auto values = strategy.distribute_values_from_function(
      [](const ValueContext& context) { return context.replica_id_in_sync_group + 1; });
  const auto sums = strategy.extended().call_for_each_replica(
      [](int value, int plain) { return value * plain; }, values, 10);
  EXPECT_EQ(strategy.local_results(sums), (std::vector<int>{10, 20}));
  // The new handle has the same function.
  EXPECT_EQ(MirroredStrategy(kTwo).extended().call_for_each_replica([] { return 2; })[1], 2);
  const auto foreign = PerReplica<int>({1, 2, 3});
  EXPECT_TUTTI_ERROR(strategy.extended().call_for_each_replica([](int) {}, foreign),
                     ErrorCode::kInvalidArgument, "call_for_each_replica", "3 components");
}

TEST(V1Extended, HasTheOldAndTheNewNames) {
  const v1::MirroredStrategy strategy(kTwo);
  const v1::StrategyExtended extended = strategy.extended();
  EXPECT_FALSE(extended.experimental_require_static_shapes());
  EXPECT_FALSE(extended.experimental_between_graph());
  EXPECT_TRUE(extended.experimental_should_init());
  EXPECT_TRUE(extended.should_checkpoint());
  EXPECT_TRUE(extended.should_save_summary());
  EXPECT_EQ(extended.worker_devices().size(), 2U);
  EXPECT_EQ(extended.worker_devices_by_replica()[1].size(), 1U);
  EXPECT_EQ(extended.parameter_devices().size(), 2U);
  EXPECT_EQ(extended->num_local_replicas(), 2);

  const Variable v =
      strategy.scope([] { return Variable(1., {.aggregation = VariableAggregation::kSum}); });
  EXPECT_TRUE(extended.variable_created_in_scope(v));
  EXPECT_EQ(extended.read_var(v).item<float>(), 1);
  EXPECT_TRUE(extended.value_container(v.components()[1]).has_value());
  const auto two = strategy.run([] { return at::ones({1}); });
  EXPECT_EQ(extended.reduce_to(ReduceOp::kSum, two, "CPU:0").value().item<float>(), 2);
  EXPECT_EQ(extended.batch_reduce_to(ReduceOp::kSum, {{two, "CPU:0"}, {two, v}}).size(), 2U);
  EXPECT_EQ(extended.broadcast_to(at::ones({1}), v).size(), 2U);
  extended.update(v, [](const Variable& each) { each.assign_add(1.); });
  EXPECT_EQ(v.value().item<float>(), 2);
  int slots = 0;
  extended.update_non_slot(extended.non_slot_devices({v}), [&] { ++slots; });
  EXPECT_EQ(slots, 2);
  strategy.scope([&] {
    const auto colocated = strategy.colocate_vars_with(v);
    EXPECT_EQ(Variable(2.).devices(), v.devices());
  });
}

TEST(V1Config, IsWhatEachStrategyNeeds) {
  const ConfigProto mine{.device_filters = {"/job:mine"}};
  EXPECT_EQ(v1::OneDeviceStrategy("CPU:0").update_config_proto(mine), mine);
  ConfigProto isolated = mine;
  isolated.isolate_session_state = true;
  EXPECT_EQ(v1::MirroredStrategy(kTwo).update_config_proto(mine), isolated);
  EXPECT_EQ(v1::CentralStorageStrategy(kTwo).update_config_proto(mine), isolated);
  EXPECT_EQ(v1::MultiWorkerMirroredStrategy().update_config_proto(mine), mine);
  ConfigProto config = mine;
  v1::MirroredStrategy strategy(kTwo);
  strategy.configure();
  strategy.configure(&config);
  EXPECT_EQ(config, isolated);
}

TEST(V1Config, TellsAWorkerItsLeaderAndItsFilter) {
  const ClusterSpec cluster{{"worker", test::free_addresses(2)}};
  const auto worker = [&](int task) {
    v1::MirroredStrategy strategy({"CPU:0"});
    ConfigProto config;
    strategy.configure(&config, cluster, "worker", task);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
    EXPECT_TRUE(config.isolate_session_state);
    EXPECT_EQ(config.experimental.collective_group_leader, "/job:worker/replica:0/task:0");
    EXPECT_EQ(config.device_filters,
              std::vector<std::string>{"/job:worker/task:" + std::to_string(task)});
    const auto ids =
        strategy.experimental_run([] { return get_replica_context()->replica_id_in_sync_group(); });
    EXPECT_EQ(strategy.reduce(ReduceOp::kSum, ids), 1);
  };
  std::thread other([&] { worker(1); });
  worker(0);
  other.join();
}

TEST(V1Config, RefusesClustersThatAStrategyCannotJoin) {
  v1::OneDeviceStrategy one("CPU:0");
  EXPECT_TUTTI_ERROR(one.configure(one_worker(), "worker", 0), ErrorCode::kFailedPrecondition,
                     "OneDeviceStrategy", "it runs in one process only");
  v1::MirroredStrategy mirrored(kTwo);
  EXPECT_TUTTI_ERROR(mirrored.configure(nullptr, one_worker()), ErrorCode::kInvalidArgument,
                     "without the task of this process");
  v1::MirroredStrategy with_ops(kTwo, std::make_shared<ReductionToOneDevice>());
  EXPECT_TUTTI_ERROR(with_ops.configure(one_worker(), "worker", 0), ErrorCode::kFailedPrecondition,
                     "it was given cross_device_ops");
}

TEST(V1Config, LetsAMultiWorkerStrategyJoinLater) {
  v1::MultiWorkerMirroredStrategy strategy;
  ConfigProto config;
  strategy.configure(&config, one_worker(), "worker", 0);
  EXPECT_EQ(config.device_filters, std::vector<std::string>{"/job:worker/task:0"});
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_TUTTI_ERROR(strategy.configure(one_worker(), "worker", 0), ErrorCode::kFailedPrecondition,
                     "it is already configured");
}

}  // namespace tutti::compat_test
