// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/support/models.h"

#include <cmath>
#include <utility>

namespace bench {
namespace {

struct Scale final : Net {
  Scale() { weight = register_parameter("weight", at::empty({1})); }
  at::Tensor forward(const at::Tensor& x) override { return x * weight; }

  at::Tensor weight;
};

struct Layers final : Net {
  explicit Layers(const std::vector<int64_t>& sizes) {
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      layers.push_back(
          register_module(std::to_string(i), torch::nn::Linear(sizes[i], sizes[i + 1])));
    }
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor out = layers[0](x);
    for (size_t i = 1; i < layers.size(); ++i) out = layers[i](at::relu(out));
    return out;
  }

  std::vector<torch::nn::Linear> layers;
};

struct Convolutions final : Net {
  Convolutions(int64_t channels, int64_t side, int64_t hidden) {
    const int64_t pooled = (side - 4) / 2;
    first = register_module("first", torch::nn::Conv2d(1, channels, 3));
    second = register_module("second", torch::nn::Conv2d(channels, 2 * channels, 3));
    third = register_module("third", torch::nn::Linear(2 * channels * pooled * pooled, hidden));
    fourth = register_module("fourth", torch::nn::Linear(hidden, 10));
  }
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor out = at::max_pool2d(at::relu(second(at::relu(first(x)))), 2);
    return fourth(at::relu(third(out.flatten(1))));
  }

  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear third{nullptr}, fourth{nullptr};
};

tutti::PerReplica<Batch> make_batches(const Model& model, int first_replica, size_t count) {
  std::vector<Batch> batches;
  for (size_t r = 0; r < count; ++r) {
    batches.push_back(model.batch(first_replica + static_cast<int>(r)));
  }
  return tutti::PerReplica<Batch>(std::move(batches));
}

}  // namespace

at::Tensor numbers(int64_t count, int seed) {
  at::Tensor values = at::arange(count, at::kDouble);
  values.add_(1000.0 * seed).mul_(12.9898).sin_().mul_(43758.5453);
  return values.sub_(values.floor()).mul_(2).sub_(1).to(at::kFloat);
}

void Net::fill() {
  const torch::NoGradGuard no_grad;
  int i = 0;
  for (at::Tensor& parameter : parameters()) {
    const auto fan_in = static_cast<double>(parameter[0].numel());
    const double bound = parameter.dim() > 1 ? std::sqrt(6 / fan_in) : 0.01;
    parameter.copy_(numbers(parameter.numel(), i++).mul_(bound).reshape(parameter.sizes()));
  }
}

std::shared_ptr<Net> Model::make_filled() const {
  std::shared_ptr<Net> net = make();
  net->fill();
  return net;
}

Batch Model::batch(int replica) const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return {numbers(count, 100 + replica).reshape(shape),
          at::arange(shape[0]).mul(3 + replica).remainder(classes)};
}

std::function<std::shared_ptr<Net>()> layers(const std::vector<int64_t>& sizes) {
  return [sizes] { return std::make_shared<Layers>(sizes); };
}

std::vector<Model> models(bool smoke) {
  const auto one = [] { return std::make_shared<Scale>(); };
  const auto cnn = [smoke] {
    return smoke ? std::make_shared<Convolutions>(2, 8, 8)
                 : std::make_shared<Convolutions>(32, 28, 128);
  };
  if (smoke) {
    return {{"one", one, {8, 10}},
            {"mlp", layers({20, 16, 16, 10}), {4, 20}},
            {"cnn", cnn, {4, 1, 8, 8}},
            {"big", layers({64, 64, 64, 10}), {2, 64}},
            {"many", layers(std::vector<int64_t>(6, 8)), {4, 8}, 8}};
  }
  return {{"one", one, {8, 10}},
          {"mlp", layers({784, 512, 512, 10}), {64, 784}, 10, 0.95, 0.45},
          {"cnn", cnn, {64, 1, 28, 28}, 10, 0.95, 0.90},
          {"big", layers({2048, 4096, 4096, 10}), {8, 2048}, 10, 0.95, 0.72},
          {"many", layers(std::vector<int64_t>(101, 64)), {32, 64}, 64, 0.95, 0.4}};
}

Trainer::Trainer(tutti::Strategy strategy, const Model& model, int first_replica)
    : strategy_(std::move(strategy)),
      net_(tutti::replicate(strategy_, [&model] { return model.make_filled(); })),
      optimizer_(net_, torch::optim::SGDOptions(kLearningRate)),
      batches_(make_batches(model, first_replica, strategy_.extended().worker_devices().size())) {}

double Trainer::step(Sums sums) {
  const auto losses = strategy_.run(
      [this, sums](const at::Tensor& x, const at::Tensor& y) {
        const at::Tensor loss = tutti::average_loss(torch::nn::functional::cross_entropy(
            net_->forward(x), y,
            torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone)));
        optimizer_.zero_grad();
        {
          std::shared_ptr<void> quiet;
          if (sums != Sums::kDuringBackward) quiet = optimizer_.no_sync();
          loss.backward();
        }
        if (sums != Sums::kNever) optimizer_.step();
        return loss.item<double>();
      },
      batches_);
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum;
}

}  // namespace bench
