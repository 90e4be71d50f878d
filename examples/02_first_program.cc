// SPDX-License-Identifier: Apache-2.0
//
// The smallest whole program: two replicas fit a line together.
//
// Run:  build/release/bin/02_first_program --devices=CPU:0,CPU:1
// Expected last line: y = 3\.00 x \+ 1\.00, loss 0\.0000

// [snippet program]
#include <cstdio>

#include <torch/torch.h>
#include <tutti/tutti.h>

int main(int argc, char** argv) {
  tutti::set_logical_cpu_devices(2);
  tutti::Strategy strategy = tutti::make_strategy(argc, argv);  // --devices=CPU:0,CPU:1

  at::Tensor xs = torch::linspace(-1, 1, 100).unsqueeze(1);
  auto batches = strategy.distribute_dataset(  // 16 rows for all replicas together
      tutti::data::from_tensor_slices(std::tuple(xs, 3 * xs + 1)).shuffle(100).batch(16));

  auto model = tutti::replicate<torch::nn::Linear>(strategy, 1, 1);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.2));
  tutti::metrics::Mean loss(strategy, "loss");

  for (int epoch = 0; epoch < 20; ++epoch) {
    loss.reset();
    for (auto& batch : batches) {
      strategy.run(
          [&](at::Tensor x, at::Tensor y) {  // on all replicas at once, each with its own rows
            at::Tensor errors = (model->forward(x) - y).square();
            optimizer.minimize(tutti::average_loss(errors));
            loss.update(errors);
          },
          batch);
    }
  }
  std::printf("y = %.2f x + %.2f, loss %.4f\n", model.primary().weight.item<double>(),
              model.primary().bias.item<double>(), loss.result());
}
// [/snippet]
