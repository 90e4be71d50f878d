// SPDX-License-Identifier: Apache-2.0
//
// The smallest whole program: two replicas find the slope of a line together.
//
// Run:  build/release/bin/02_first_program --devices=CPU:0,CPU:1
// Expected last line: slope 3\.0000, loss 0\.0000

// [snippet program]
#include <cstdio>

#include <torch/torch.h>
#include <tutti/tutti.h>

int main(int argc, char** argv) {
  tutti::set_logical_cpu_devices(2);
  tutti::Strategy strategy = tutti::make_strategy(argc, argv);  // --devices=CPU:0,CPU:1

  auto xs = strategy.distribute_values_from_function([](tutti::ValueContext replica) {
    return torch::arange(4) + 4.0 * replica.replica_id_in_sync_group;  // 0..3 and 4..7
  });
  auto weights = strategy.distribute_values_from_function(
      [](tutti::ValueContext) { return torch::zeros({}).requires_grad_(); });
  double loss = 0;
  for (int step = 0; step < 50; ++step) {
    auto losses = strategy.run(
        [](at::Tensor x, at::Tensor w) {                          // on every replica at once
          at::Tensor share = (w * x - 3 * x).square().sum() / 8;  // 8 examples in all
          at::Tensor gradient = torch::autograd::grad({share}, {w})[0];
          gradient = tutti::get_replica_context()->all_reduce(tutti::ReduceOp::kSum, gradient);
          torch::NoGradGuard no_grad;
          w -= 0.02 * gradient;
          return share.detach();
        },
        xs, weights);
    loss = strategy.reduce(tutti::ReduceOp::kSum, losses).item<double>();
  }
  std::printf("slope %.4f, loss %.4f\n", weights[0].item<double>(), loss);
}
// [/snippet]
