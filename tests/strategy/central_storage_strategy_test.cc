// SPDX-License-Identifier: Apache-2.0
//
// The specifics of CentralStorageStrategy. What it has in common with the others is tested by the
// contract suite, its variables by aggregating_variable_test.cc.

#include "tutti/strategy/central_storage_strategy.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/dataset.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/distributed_dataset.h"

#include "tests/contract/outside_strategy.h"
#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/tensors.h"

namespace tutti::central_storage_strategy_test {

using namespace test::variable_words;
using test::bit_equal;
using test::cpus;
using test::make_variable;
using test::my_id;
using test::on_read;
using test::on_write;
using test::random_tensor;
using test::tensor;

std::string parameter_device(const Strategy& strategy) {
  EXPECT_EQ(strategy.extended().parameter_devices().size(), 1U);
  return strategy.extended().parameter_devices()[0].short_name();
}

TEST(CentralStorageStrategy, ParametersLieOnTheOnlyDeviceOrTheFirstCpu) {
  EXPECT_EQ(parameter_device(CentralStorageStrategy({"CPU:3"})), "CPU:3");
  EXPECT_EQ(parameter_device(CentralStorageStrategy({"CPU:2", "CPU:3"})), "CPU:0");
  EXPECT_EQ(parameter_device(CentralStorageStrategy({"CPU:2", "CPU:3"}, "/cpu:3")), "CPU:3");
  EXPECT_EQ(parameter_device(CentralStorageStrategy({"CPU:2"}, "CPU:5")), "CPU:5");
  if (list_logical_devices("GPU").empty()) {
    EXPECT_EQ(static_cast<size_t>(CentralStorageStrategy().num_replicas_in_sync()),
              list_logical_devices("CPU").size());
  }
}

TEST(CentralStorageStrategy, BadDevicesAreErrors) {
  EXPECT_TUTTI_ERROR(CentralStorageStrategy({"CPU:0", "CPU:0"}), kInvalid, "CentralStorageStrategy",
                     "more than once");
  EXPECT_TUTTI_ERROR(CentralStorageStrategy({"CPU:0", "CPU:16"}), ErrorCode::kNotFound,
                     "CentralStorageStrategy", "CPU:16");
  EXPECT_TUTTI_ERROR(CentralStorageStrategy({"CPU:0", "CPU:1"}, "CPU:16"), ErrorCode::kNotFound,
                     "CentralStorageStrategy", "CPU:16");
  EXPECT_TUTTI_ERROR(CentralStorageStrategy({"CPU:0"}, "/job:worker/task:1/device:CPU:0"), kInvalid,
                     "another process");
}

TEST(CentralStorageStrategy, TakesTheOptionsOfItsRelatives) {
  const auto ops = std::make_shared<test::OutsideOps>();
  const CentralStorageStrategy strategy(cpus(2), {},
                                        {.cross_device_ops = ops,
                                         .communication_options = {.bytes_per_pack = 1024},
                                         .runner = {.concurrent_replicas = 1}});
  EXPECT_EQ(&strategy.extended().cross_device_ops(), ops.get());
  EXPECT_EQ(strategy.extended().communication_options().bytes_per_pack, 1024);
  EXPECT_TUTTI_ERROR(CentralStorageStrategy(cpus(2), {}, {.runner = {.threads_per_replica = -1}}),
                     kInvalid, "CentralStorageStrategy: threads_per_replica is -1");
}

TEST(CentralStorageStrategy, LogsItsDevices) {
  const test::LogCapture log;
  const CentralStorageStrategy strategy(cpus(2), "CPU:1", {.runner = {.threads_per_replica = 1}});
  EXPECT_EQ(log.count("Using CentralStorageStrategy with compute devices "
                      "('/job:localhost/replica:0/task:0/device:CPU:0', "
                      "'/job:localhost/replica:0/task:0/device:CPU:1') and parameters on "
                      "'/job:localhost/replica:0/task:0/device:CPU:1'; 1 thread per replica on "),
            1)
      << log.text();
}

TEST(CentralStorageStrategy, SharesItsParametersAndSaysSo) {
  for (const int replicas : {1, 2, 4}) {
    const CentralStorageStrategy strategy(cpus(replicas));
    EXPECT_TRUE(strategy.extended().shares_parameters());
    const Variable v = on_write(strategy, random_tensor({100}, at::kFloat, 1), kSum);
    EXPECT_EQ(v.components().size(), 1U);
    strategy.run([&] { EXPECT_EQ(v.value().data_ptr(), v.components()[0].data_ptr()); });
    EXPECT_TRUE(strategy.extended().non_slot_devices({v}).devices() ==
                strategy.extended().parameter_devices());
  }
  EXPECT_FALSE(test::mirrored_cpus(2).extended().shares_parameters());
}

TEST(CentralStorageStrategy, WithOneDeviceAReplicaWritesWithoutAnAggregation) {
  const CentralStorageStrategy strategy({"CPU:2"}, "CPU:4");
  const Variable v = make_variable(strategy, tensor({1.F, 2.F}));
  EXPECT_EQ(v.device().to_string(), "/job:localhost/replica:0/task:0/device:CPU:4");
  strategy.run([&] { v.assign_add(1); });
  EXPECT_TRUE(bit_equal(v.value(), tensor({2.F, 3.F})));
}

TEST(CentralStorageStrategy, VariablesThatSynchroniseOnReadHaveACopyForEveryReplica) {
  const CentralStorageStrategy strategy(cpus(3), "CPU:5");
  const MirroredStrategy mirrored(cpus(3));
  const Variable v = on_read(strategy, tensor({0.5, 1.0}), kSum);
  const Variable same = on_read(mirrored, tensor({0.5, 1.0}), kSum);
  ASSERT_EQ(v.components().size(), 3U);
  EXPECT_EQ(v.devices(), strategy.extended().worker_devices());
  const auto count = [](const Variable& mine) {
    // The calls differ between replicas, which would never return if they had to meet.
    for (int k = 0; k <= my_id(); ++k) mine.assign_add(tensor({0.1, 10.0}) * (k + 1));
    return mine.read_value();
  };
  const auto mine = strategy.run(count, v);
  const auto theirs = mirrored.run(count, same);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(bit_equal(mine[i], theirs[i]));
  EXPECT_TRUE(bit_equal(v.value(), same.value()));
  v.assign(tensor({3.0, 6.0}));
  EXPECT_TRUE(bit_equal(v.value(), tensor({3.0, 6.0})));
}

TEST(CentralStorageStrategy, VariablesCanLieBesideOthersOfAnyKind) {
  const CentralStorageStrategy strategy(cpus(2), "CPU:5");
  const Variable counts = on_read(strategy, tensor({0.0}), kSum);
  const Variable weights = on_write(strategy, tensor({1.0}), kSum);
  strategy.scope([&] {
    const auto beside_counts = strategy.extended().colocate_vars_with(counts);
    EXPECT_EQ(Variable(1.0).components().size(), 1U);
    EXPECT_EQ(on_read(strategy, tensor({0.0}), kSum).components().size(), 2U);
  });
  strategy.scope([&] {
    const auto beside_weights = strategy.extended().colocate_vars_with(weights);
    EXPECT_EQ(Variable(1.0).device(), weights.device());
    EXPECT_EQ(on_read(strategy, tensor({0.0}), kSum).components().size(), 2U);
  });
}

TEST(CentralStorageStrategy, AllReduceHasTheBitsOfMirroredStrategy) {
  for (const int replicas : {2, 3, 4}) {
    for (const int64_t elements : {1, 1000, 100'003}) {
      const auto reduce = [&] {
        return get_replica_context()->all_reduce(
            ReduceOp::kSum,
            random_tensor({elements}, at::kFloat, static_cast<uint64_t>(my_id()) + 5));
      };
      const auto mine = CentralStorageStrategy(cpus(replicas)).run(reduce);
      const auto theirs = MirroredStrategy(cpus(replicas)).run(reduce);
      for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(bit_equal(mine[i], theirs[i]));
    }
  }
}

// Fits a line by hand to 23 rows in batches of 7, the last of which has 2.
at::Tensor fit(const Strategy& strategy) {
  const at::Tensor xs = random_tensor({23, 3}, at::kFloat, 3);
  const at::Tensor ys = random_tensor({23}, at::kFloat, 4);
  const Variable w = on_write(strategy, at::zeros({3}), kSum);
  const auto rows =
      strategy.distribute_dataset(data::from_tensor_slices(std::pair(xs, ys)).batch(7));
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const auto& step : rows) {
      strategy.run(
          [&](const std::pair<at::Tensor, at::Tensor>& batch) {
            const at::Tensor error = batch.first.matmul(w.value().detach()) - batch.second;
            w.assign_sub(batch.first.t().matmul(error) * 0.01F);
          },
          step);
    }
  }
  return w.read_value();
}

TEST(CentralStorageStrategy, TrainingHasTheBitsOfMirroredStrategy) {
  for (const int replicas : {1, 2, 3, 4}) {
    const at::Tensor mine = fit(CentralStorageStrategy(cpus(replicas)));
    EXPECT_TRUE(bit_equal(mine, fit(MirroredStrategy(cpus(replicas)))));
    EXPECT_TRUE(mine.abs().sum().item<float>() > 0.01F);
  }
}

TEST(CentralStorageStrategy, EveryRowReachesAReplicaOnce) {
  for (const int replicas : {1, 2, 3, 4}) {
    for (int64_t rows = 1; rows < 12; ++rows) {
      const CentralStorageStrategy strategy(cpus(replicas));
      int64_t sum = 0;
      int64_t count = 0;
      for (const auto& step : strategy.distribute_dataset(data::range(rows).batch(5))) {
        for (const at::Tensor& part : step) {
          sum += part.sum().item<int64_t>();
          count += part.numel();
        }
      }
      EXPECT_EQ(count, rows) << replicas;
      EXPECT_EQ(sum, rows * (rows - 1) / 2) << replicas;
    }
  }
}

}  // namespace tutti::central_storage_strategy_test
