// SPDX-License-Identifier: Apache-2.0
//
// Large batches on small memory: four small batches for each update, products in bfloat16,
// gradients sent as bfloat16, and a GradScaler that skips steps that overflow, on all replicas.
// The result is compared with float32 and whole batches.
//
// Run:  build/release/bin/09_accumulate_mixed_precision --devices=CPU:0,CPU:1
// Expected last line: OK: (9[6-9]|100) % in bfloat16, (9[6-9]|100) % in float32

#include <cstdio>
#include <limits>

#include <torch/torch.h>
#include <tutti/tutti.h>

#include "digits.h"
#include "help.h"

namespace {

struct Result {
  double accuracy = 0;
  int updates = 0;
  int overflows = 0;
  double scale = 0;
};

double accuracy_of(torch::nn::SequentialImpl& net) {
  const Digits test = make_digits(1000, 2);
  torch::NoGradGuard no_grad;
  const at::Tensor right = net.forward(test.images).argmax(1).eq(test.labels);
  return right.to(torch::kDouble).mean().item<double>();
}

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(24, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 10));
}

Result train_mixed(const tutti::Strategy& strategy) {
  const Digits digits = make_digits(4096, 1);
  auto batches = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(digits.images, digits.labels)).batch(32));
  // [snippet make]
  auto model = tutti::replicate(strategy, make_net);
  tutti::DistributedOptimizer<torch::optim::AdamW> optimizer(
      model, torch::optim::AdamWOptions(4e-3),
      {.accumulate = 4, .clip_norm = 5, .communication_dtype = torch::kBFloat16});
  tutti::GradScaler scaler(strategy, {.init_scale = 1024, .growth_interval = 100});
  // [/snippet]
  Result result;
  for (int epoch = 0; epoch < 8; ++epoch) {
    int number = 0;
    for (auto& batch : batches) {
      ++number;
      // A value on replica 0 alone is too large: no replica may use this step.
      const bool bad = epoch == 1 && number == 10;
      // [snippet step]
      auto outcomes = strategy.run(
          [&](const at::Tensor& x, const at::Tensor& y) {
            at::Tensor loss;
            {
              tutti::Autocast autocast(torch::kBFloat16);
              at::Tensor logits = model->forward(x);
              TORCH_CHECK(logits.scalar_type() == torch::kBFloat16);
              loss = optimizer.average_loss(  // over all batches up to the next update
                  torch::cross_entropy_loss(logits.to(torch::kFloat), y, {}, at::Reduction::None));
            }
            if (bad && tutti::get_replica_context()->replica_id_in_sync_group() == 0) {
              loss = loss * std::numeric_limits<float>::infinity();
            }
            optimizer.zero_grad();  // nothing happens between the four batches
            scaler.scale(loss).backward();
            const tutti::StepResult outcome = scaler.step(optimizer);  // updates every 4th time
            scaler.update();
            return outcome;
          },
          batch);
      // [/snippet]
      for (const tutti::StepResult& each : outcomes) {
        TORCH_CHECK(each.updated == outcomes[0].updated, "replicas disagree on whether to update");
      }
      result.updates += outcomes[0].updated ? 1 : 0;
      result.overflows += outcomes[0].non_finite ? 1 : 0;
    }
  }
  result.accuracy = accuracy_of(model.primary());
  result.scale = scaler.scale();
  return result;
}

Result train_float32(const tutti::Strategy& strategy) {
  const Digits digits = make_digits(4096, 1);
  auto batches = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(digits.images, digits.labels)).batch(128));
  auto model = tutti::replicate(strategy, make_net);
  tutti::DistributedOptimizer<torch::optim::AdamW> optimizer(
      model, torch::optim::AdamWOptions(4e-3), {.clip_norm = 5});
  Result result;
  for (int epoch = 0; epoch < 8; ++epoch) {
    for (auto& batch : batches) {
      strategy.run(
          [&](const at::Tensor& x, const at::Tensor& y) {
            optimizer.minimize(tutti::average_loss(
                torch::cross_entropy_loss(model->forward(x), y, {}, at::Reduction::None)));
          },
          batch);
      ++result.updates;
    }
  }
  result.accuracy = accuracy_of(model.primary());
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (printed_help(argc, argv, "Reads noisy digits in bfloat16, four batches for an update.")) {
    return 0;
  }
  tutti::set_logical_cpu_devices(2);
  tutti::Strategy strategy = tutti::make_strategy(argc, argv);
  const Result plain = train_float32(strategy);
  const Result mixed = train_mixed(strategy);
  std::printf("float32:  %d updates by batches of 128, accuracy %.1f %%\n", plain.updates,
              100 * plain.accuracy);
  std::printf(
      "bfloat16: %d updates by 4 batches of 32, accuracy %.1f %%; %d skipped, scale now %.0f\n",
      mixed.updates, 100 * mixed.accuracy, mixed.overflows, mixed.scale);
  const bool right = plain.accuracy > 0.96 && mixed.accuracy > 0.96 && mixed.overflows == 1 &&
                     mixed.updates == plain.updates - 1;
  if (right) {
    std::printf("OK: %.0f %% in bfloat16, %.0f %% in float32\n", 100 * mixed.accuracy,
                100 * plain.accuracy);
  }
  return right ? 0 : 1;
}
