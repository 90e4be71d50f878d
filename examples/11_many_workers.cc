// SPDX-License-Identifier: Apache-2.0
//
// The program of 05_same_with_tutti.cc on several processes, which may run on several machines:
// only the line that makes the strategy differs. Each worker finds its cluster in TF_CONFIG;
// without it the program runs alone. All workers end with the same weights, bit by bit.
//
// Run:  build/release/bin/tutti run --workers 2 build/release/bin/11_many_workers
// Expected last line: \[worker [01]\] 2 workers; accuracy on 1000 new digits: (9[89]|100) %

// [snippet program]
#include <cstdio>

#include <torch/torch.h>
#include <tutti/tutti.h>

#include "digits.h"

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(24, 64));
    output = register_module("output", torch::nn::Linear(64, 10));
  }
  at::Tensor forward(at::Tensor x) { return output(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};

int main() {
  const Digits digits = make_digits(4096, 1);
  tutti::MultiWorkerMirroredStrategy strategy;
  auto batches = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(digits.images, digits.labels)).batch(64));
  auto model = tutti::replicate<Net>(strategy);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(
      model, torch::optim::SGDOptions(0.1).momentum(0.9));

  for (int epoch = 1; epoch <= 6; ++epoch) {
    double sum = 0;
    const auto step = [&](at::Tensor x, at::Tensor y) {
      optimizer.zero_grad();
      at::Tensor loss = tutti::average_loss(
          torch::cross_entropy_loss(model->forward(x), y, {}, at::Reduction::None));
      loss.backward();
      optimizer.step();
      return loss.item<double>();
    };
    for (auto& batch : batches)
      sum += strategy.reduce(tutti::ReduceOp::kSum, strategy.run(step, batch));
    std::printf("epoch %d: loss %.3f\n", epoch, sum / 64);
  }

  const Digits test = make_digits(1000, 2);
  const at::Tensor right = model.primary().forward(test.images).argmax(1).eq(test.labels);
  const double accuracy = right.to(torch::kDouble).mean().item<double>();
  std::printf("%d workers; accuracy on 1000 new digits: %.0f %%\n",
              strategy.extended().workers().size(), 100 * accuracy);
  return accuracy > 0.98 ? 0 : 1;
}
// [/snippet]
