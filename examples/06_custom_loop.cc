// SPDX-License-Identifier: Apache-2.0
//
// A complete custom loop: a shuffled dataset that is split over the replicas, reduced losses,
// metrics, and an evaluation on digits that were not used in training.
//
// Run:  build/release/bin/06_custom_loop --devices=CPU:0,CPU:1,CPU:2
// Expected last line: every one of 1003 digits was counted once

#include <cmath>
#include <cstdio>

#include <torch/torch.h>
#include <tutti/tutti.h>

#include "digits.h"
#include "help.h"

namespace {

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(24, 64), torch::nn::ReLU(),
                               torch::nn::Dropout(0.1), torch::nn::Linear(64, 10));
}

at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
}

}  // namespace

int main(int argc, char** argv) {
  if (printed_help(argc, argv, "Reads noisy digits: a custom loop with metrics.")) return 0;
  tutti::set_logical_cpu_devices(3);
  tutti::Strategy strategy = tutti::make_strategy(argc, argv);

  // 1003 is not a multiple of 64, nor 64 of three replicas, and yet no digit is left out.
  const Digits train = make_digits(4000, 1);
  const Digits test = make_digits(1003, 2);
  // [snippet input]
  auto training = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(train.images, train.labels))
          .shuffle(4000, {.seed = 1})
          .batch(64));  // for all replicas together
  auto evaluation = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(test.images, test.labels)).batch(256));
  // [/snippet]

  // [snippet make]
  auto model = tutti::replicate(strategy, make_net);
  tutti::DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(1e-2));
  tutti::metrics::Mean test_loss(strategy, "test_loss");
  tutti::metrics::Accuracy accuracy(strategy, "accuracy");
  tutti::metrics::Sum count(strategy, "count");
  // [/snippet]

  // [snippet steps]
  const auto train_step = [&](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor loss = tutti::average_loss(losses_of(model->forward(x), y));
    optimizer.minimize(loss);  // zero_grad, backward, step
    return loss.item<double>();
  };
  const auto test_step = [&](const at::Tensor& x, const at::Tensor& y) {
    at::Tensor logits = model->forward(x);
    test_loss.update(losses_of(logits, y));
    accuracy.update(logits, y);
    count.update(static_cast<double>(x.size(0)));
  };
  // [/snippet]

  // [snippet epochs]
  for (int epoch = 1; epoch <= 5; ++epoch) {
    model.train();
    double sum = 0;
    int64_t steps = 0;
    for (auto& batch : training) {
      auto parts = strategy.run(train_step, batch);  // the replicas' parts of the loss
      sum += strategy.reduce(tutti::ReduceOp::kSum, parts);
      ++steps;
    }
    model.eval();
    test_loss.reset();
    accuracy.reset();
    count.reset();
    torch::NoGradGuard no_grad;
    for (auto& batch : evaluation) strategy.run(test_step, batch);
    std::printf("epoch %d: loss %.3f, on new digits %.3f, accuracy %.1f %%\n", epoch,
                sum / static_cast<double>(steps), test_loss.result(), 100 * accuracy.result());
  }
  // [/snippet]

  // The same by hand, with one copy of the model.
  torch::NoGradGuard no_grad;
  const at::Tensor logits = model.primary().forward(test.images);
  const double mean = losses_of(logits, test.labels).to(torch::kDouble).mean().item<double>();
  const at::Tensor right = logits.argmax(1).eq(test.labels);
  const double fraction = right.to(torch::kDouble).mean().item<double>();
  if (count.result() != 1003 || std::abs(test_loss.result() - mean) > 1e-6 ||
      std::abs(accuracy.result() - fraction) > 1e-12 || fraction < 0.97) {
    std::printf("FAILED: %.0f digits, loss %.9f instead of %.9f, accuracy %.6f instead of %.6f\n",
                count.result(), test_loss.result(), mean, accuracy.result(), fraction);
    return 1;
  }
  std::printf("every one of %.0f digits was counted once\n", count.result());
  return 0;
}
