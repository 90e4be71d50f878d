// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/from-tensorflow.md.

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/compat/tf_v1.h"
#include "tutti/tutti.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

TEST(FromTensorFlow, RunsACustomLoop) {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  std::vector<tutti::PerReplica<at::Tensor>> dataset;
  for (int step = 0; step < 3; ++step) {
    dataset.push_back(strategy.distribute_values_from_function([&](tutti::ValueContext replica) {
      return torch::full({2}, 1.0 * step + replica.replica_id_in_sync_group);
    }));
  }
  const auto replica_fn = [](const at::Tensor& x) { return x.sum(); };
  // [snippet loop]
  at::Tensor total = torch::zeros({});
  for (auto& x : dataset) {
    auto per_replica_result = strategy.run(replica_fn, x);
    total += strategy.reduce(tutti::ReduceOp::kSum, per_replica_result);
  }
  // [/snippet]
  EXPECT_EQ(total.item<double>(), 18);
}

TEST(FromTensorFlow, UnwrapsASingleReplica) {
  // [snippet one_device]
  tutti::OneDeviceStrategy strategy("/cpu:0");
  int result = 0;
  for (int i = 0; i < 10; ++i) result += strategy.run([](int x) { return x * 2; }, i).only();
  // [/snippet]
  EXPECT_EQ(result, 90);
}

TEST(FromTensorFlow, KeepsOldNames) {
  const auto dataset = tutti::data::range(8);
  const auto replica_fn = [](const at::Tensor& x) { return x.sum(); };
  // [snippet old_names]
  tutti::v1::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto iterator = strategy.make_dataset_iterator(dataset.batch(4));
  iterator.initialize();
  auto results = strategy.experimental_run(replica_fn, iterator);
  auto losses = strategy.experimental_local_results(results);
  // [/snippet]
  EXPECT_EQ(losses[1].item<int64_t>(), 5);
}

}  // namespace
