// SPDX-License-Identifier: Apache-2.0
//
// A training whose result is compared between placements of the same replicas: 50 steps of a small
// CNN with dropout, over rows that the batch size does not divide.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "tutti/tutti.h"

namespace tutti::testing {

struct CnnImpl : torch::nn::Module {
  CnnImpl(bool with_norm, double drop) {
    convolution = register_module("convolution", torch::nn::Conv2d(1, 4, 3));
    if (with_norm) norm = register_module("norm", torch::nn::BatchNorm2d(4));
    dropout = register_module("dropout", torch::nn::Dropout(drop));
    dense = register_module("dense", torch::nn::Linear(4 * 36, 10));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = convolution(x);
    if (!norm.is_empty()) y = norm(y);
    return dense(dropout(torch::relu(y).flatten(1)));
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear dense{nullptr};
};

struct TrainingOptions {
  bool with_norm = false;
  double dropout = 0.25;
  int steps = 50;
  data::AutoShardPolicy policy = data::AutoShardPolicy::kBatch;
  at::ScalarType dtype = at::kFloat;
  /// Their lines are numbers of rows; without files all rows are taken.
  std::vector<std::string> files = {};
  /// Called inside each replica before its step.
  std::function<void(int step)> before_step = [](int) {};
};

/// Copies of all parameters, optimizer state and buffers at the end.
inline std::vector<at::Tensor> train_tensors(const Strategy& strategy,
                                             const TrainingOptions& options) {
  const int64_t rows = 24 * 12 + 7;
  const at::Tensor x = torch::randn({rows, 1, 8, 8}).to(options.dtype);
  const at::Tensor y = torch::randint(0, 10, {rows});
  const data::Dataset<std::tuple<at::Tensor, at::Tensor>> examples =
      options.files.empty() ? data::from_tensor_slices(std::tuple(x, y))
                            : data::text_line(options.files).map([x, y](const std::string& line) {
                                const int64_t row = std::stoll(line);
                                return std::tuple(x[row], y[row]);
                              });
  auto batches =
      strategy.distribute_dataset(examples.shuffle(64, {.seed = 3})
                                      .batch(24)
                                      .with_options({.auto_shard_policy = options.policy}));
  auto model = replicate<CnnImpl>(strategy, options.with_norm, options.dropout);
  model.to(options.dtype);
  DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(1e-2));
  int step = 0;
  while (step < options.steps) {
    for (auto& batch : batches) {
      strategy.run(
          [&](const at::Tensor& images, const at::Tensor& labels) {
            options.before_step(step);
            const at::Tensor losses = torch::nn::functional::cross_entropy(
                model->forward(images), labels,
                torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
            optimizer.minimize(average_loss(losses));
          },
          batch);
      if (++step == options.steps) break;
    }
  }
  std::vector<at::Tensor> all;
  for (const auto& each : model.primary().named_parameters()) {
    all.push_back(each.value().detach().clone());
    const std::vector<at::Tensor> states = optimizer.states_of(each.key());
    TUTTI_CHECK(states.size() == 2);
    all.insert(all.end(), states.begin(), states.end());
  }
  for (const auto& each : model.primary().named_buffers()) all.push_back(each.value().clone());
  return all;
}

/// The bytes of the same.
inline std::string train(const Strategy& strategy, const TrainingOptions& options = {}) {
  std::string bytes;
  for (const at::Tensor& each : train_tensors(strategy, options)) {
    bytes.append(static_cast<const char*>(each.data_ptr()), each.nbytes());
  }
  return bytes;
}

inline std::vector<std::string> cpus(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("CPU:" + std::to_string(i));
  return names;
}

}  // namespace tutti::testing
