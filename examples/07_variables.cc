// SPDX-License-Identifier: Apache-2.0
//
// State besides the model: a step counter and the moving average of the weights are variables, a
// count of rows is a variable that is combined when it is read, and merge_call runs a function
// once for all replicas: here, it writes the average.
//
// Run:  build/release/bin/07_variables --devices=CPU:0,CPU:1
// Expected last line: 200 steps, 6400 rows; the average is nearer to \[1 2 3 4\] than the weights

#include <cmath>
#include <cstdio>

#include <torch/torch.h>
#include <tutti/tutti.h>

#include "help.h"

using tutti::Variable;
using tutti::VariableAggregation;
using tutti::VariableSynchronization;

int main(int argc, char** argv) {
  if (printed_help(argc, argv, "Fits noisy data and averages the weights of all steps.")) return 0;
  tutti::set_logical_cpu_devices(2);
  tutti::Strategy strategy = tutti::make_strategy(argc, argv);

  // [snippet make]
  torch::manual_seed(1);
  auto model =
      tutti::replicate<torch::nn::Linear>(strategy, torch::nn::LinearOptions(4, 1).bias(false));
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  auto [steps, rows, average] = strategy.scope([&] {
    return std::tuple(
        Variable(0, {.name = "steps", .aggregation = VariableAggregation::kOnlyFirstReplica}),
        Variable(0, {.name = "rows",
                     .synchronization = VariableSynchronization::kOnRead,
                     .aggregation = VariableAggregation::kSum}),
        Variable(model.primary().weight.detach(), {.name = "average", .trainable = false}));
  });
  // [/snippet]

  // y = x [1 2 3 4] + noise: with a constant learning rate the weights never settle.
  const at::Tensor truth = torch::tensor({{1.F, 2.F, 3.F, 4.F}});
  const at::Tensor x = torch::randn({6400, 4});
  const at::Tensor y = x.matmul(truth.t()) + 2 * torch::randn({6400, 1});
  auto batches =
      strategy.distribute_dataset(tutti::data::from_tensor_slices(std::tuple(x, y)).batch(32));

  // [snippet step]
  const auto step = [&](const at::Tensor& part, const at::Tensor& target) {
    optimizer.minimize(tutti::average_loss((model->forward(part) - target).square()));
    rows.assign_add(part.size(0));  // this replica's own count
    steps.assign_add(1);            // replica 0's value counts, for all copies
    tutti::get_replica_context()->merge_call([&](const tutti::Strategy&) {
      // Once, while all replicas wait; a write from here reaches every copy.
      const double decay = steps.value().item<int64_t>() < 20 ? 0.5 : 0.98;
      const at::Tensor weight = model.primary().weight.detach();
      average.assign(decay * average.value() + (1 - decay) * weight);
    });
  };
  // [/snippet]
  double path = 0;  // the error of the weights, averaged over the last 100 steps
  double average_path = 0;
  const auto distance = [&](const at::Tensor& w) { return (w - truth).norm().item<double>(); };
  int64_t number = 0;
  for (auto& batch : batches) {
    strategy.run(step, batch);
    if (++number <= 100) continue;
    path += distance(model.primary().weight.detach()) / 100;
    average_path += distance(average.value()) / 100;
  }
  const int64_t all_steps = steps.value().item<int64_t>();
  const int64_t all_rows = rows.value().item<int64_t>();  // the sum of the replicas' counts
  std::printf("distance to the truth: weights %.3f, their average %.3f\n", path, average_path);
  const auto copies = strategy.local_results(average);
  for (const at::Tensor& copy : copies) {
    if (!copy.equal(copies[0])) return 1;
  }
  if (all_steps != number || all_rows != x.size(0) || average_path > 0.7 * path) return 1;
  std::printf("%lld steps, %lld rows; the average is nearer to [1 2 3 4] than the weights\n",
              static_cast<long long>(all_steps), static_cast<long long>(all_rows));
  return 0;
}
