// SPDX-License-Identifier: Apache-2.0
//
// A training loop in plain LibTorch: a small network learns to read noisy digits.
// 05_same_with_tutti.cc is the same program on several replicas.
//
// Run:  build/release/bin/04_plain_loop
// Expected last line: accuracy on 1000 new digits: (9[89]|100) %

// [snippet program]
#include <cstdio>

#include <torch/torch.h>

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
  const auto images = digits.images.split(64), labels = digits.labels.split(64);
  auto model = std::make_shared<Net>();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));

  for (int epoch = 1; epoch <= 6; ++epoch) {
    double sum = 0;
    const auto step = [&](at::Tensor x, at::Tensor y) {
      optimizer.zero_grad();
      at::Tensor loss = torch::cross_entropy_loss(model->forward(x), y);
      loss.backward();
      optimizer.step();
      return loss.item<double>();
    };
    for (size_t i = 0; i < images.size(); ++i) sum += step(images[i], labels[i]);
    std::printf("epoch %d: loss %.3f\n", epoch, sum / 64);
  }

  const Digits test = make_digits(1000, 2);
  const at::Tensor right = model->forward(test.images).argmax(1).eq(test.labels);
  const double accuracy = right.to(torch::kDouble).mean().item<double>();
  std::printf("accuracy on 1000 new digits: %.0f %%\n", 100 * accuracy);
  return accuracy > 0.98 ? 0 : 1;
}
// [/snippet]
