// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/many-workers.md.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

namespace tutti::docs_many_workers_test {

TEST(ManyWorkers, RunAsThreads) {
  // [snippet cluster]
  tutti::InProcessCluster cluster(/*workers=*/2, {.devices = {"CPU:0", "CPU:1"}});
  cluster.run([](const tutti::Strategy& strategy) {
    auto ids =
        strategy.run([] { return tutti::get_replica_context()->replica_id_in_sync_group(); });
    int sum = strategy.reduce(tutti::ReduceOp::kSum, ids);  // 0 + 1 + 2 + 3, on both workers
    EXPECT_EQ(sum, 6);
  });
  // [/snippet]
}

TEST(ManyWorkers, TakeOptions) {
  // [snippet options]
  tutti::MultiWorkerMirroredStrategy strategy(
      /*cluster_resolver=*/nullptr,    // the environment decides
      {.devices = {"CPU:0", "CPU:1"},  // of this worker; empty: all GPUs, or CPU:0
       .communication_options = {.timeout = std::chrono::seconds(60)},  // of one call
       .security = {},                                                  // secret and certificates
       .join_timeout = std::chrono::minutes(2),                         // for all workers to come
       .runner = {.threads_per_replica = 1}});
  // [/snippet]
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
}

TEST(ManyWorkers, AverageOverRows) {
  InProcessCluster(2).run([](const Strategy& strategy) {
    const auto batches =
        strategy.distribute_dataset(data::from_tensor_slices(torch::ones({10, 3})).batch(4));
    auto model = replicate<torch::nn::LinearImpl>(strategy, 3, 2);
    DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.01));
    // [snippet rows]
    for (auto& batch : batches) {
      strategy.run(
          [&](const at::Tensor& x, int64_t rows) {
            at::Tensor losses = model->forward(x).square().sum(1);
            optimizer.minimize(tutti::average_loss_over(losses, rows));
          },
          batch, batch.global_rows());
    }
    // [/snippet]
  });
}

TEST(ManyWorkers, StopAfterTheSameStep) {
  InProcessCluster(2).run([](const Strategy& strategy) {
    const auto batches = strategy.distribute_dataset(data::range(1000).batch(4));
    int steps = 0;
    const auto step = [&](const at::Tensor&) {
      if (++steps == 3 && strategy.extended().workers().rank() == 1) {
        strategy.extended().request_stop();
      }
    };
    // [snippet stop]
    for (auto& batch : batches) {
      if (strategy.extended().stop_requested()) break;  // on every worker before the same step
      strategy.run(step, batch);
    }
    // [/snippet]
    EXPECT_LT(steps, 20);
    EXPECT_EQ(strategy.reduce(ReduceOp::kMax, steps), steps);
  });
}

}  // namespace tutti::docs_many_workers_test
