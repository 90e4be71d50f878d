// SPDX-License-Identifier: Apache-2.0
//
// A custom CrossDeviceOps: gradients are exchanged as float16. Trains a small
// network to read noisy digits with and without it, and compares the two.
//
// Run:  build/release/bin/03_compressed_all_reduce
// Expected last line: 50 % of the bytes, accuracy (9[89]|100) % instead of (9[89]|100) %

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include <torch/torch.h>
#include <tutti/collectives/reduction_tree.h>
#include <tutti/tutti.h>

#include "digits.h"

namespace {

// [snippet ops]
// Rounds float32 and float64 to float16 before they leave a device, and adds by the canonical
// tree, which keeps sums of float16 in float32 and rounds once.
class CompressedAllReduce final : public tutti::CrossDeviceOps {
 public:
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor do_reduce(tutti::ReduceOp op, const tutti::PerReplica<at::Tensor>& value,
                       const tutti::CommunicationOptions&) override {
    const at::ScalarType dtype = value[0].scalar_type();
    const bool compress = dtype == torch::kFloat32 || dtype == torch::kFloat64;
    std::vector<at::Tensor> sent;
    for (const at::Tensor& each : value) {
      sent.push_back(compress ? each.to(torch::kFloat16) : each);
      bytes_ += static_cast<int64_t>(sent.back().nbytes());
    }
    return tutti::reduce_tree(op, sent).to(tutti::reduced_dtype(op, dtype));
  }

  std::atomic<int64_t> bytes_{0};  // several replicas or strategies may reduce at once
};
// [/snippet]

// The same without compression, to count the bytes.
class PlainAllReduce final : public tutti::CrossDeviceOps {
 public:
  int64_t bytes() const { return bytes_; }

 private:
  at::Tensor do_reduce(tutti::ReduceOp op, const tutti::PerReplica<at::Tensor>& value,
                       const tutti::CommunicationOptions&) override {
    for (const at::Tensor& each : value) bytes_ += static_cast<int64_t>(each.nbytes());
    return tutti::reduce_tree(op, std::vector<at::Tensor>(value.begin(), value.end()));
  }

  std::atomic<int64_t> bytes_{0};
};

torch::nn::Sequential make_model() {
  torch::manual_seed(7);  // equal parameters on every replica
  return torch::nn::Sequential(torch::nn::Linear(24, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 10));
}

struct Result {
  double loss;
  double accuracy;
};

Result train(std::shared_ptr<tutti::CrossDeviceOps> ops) {
  // [snippet use_ops]
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"}, {.cross_device_ops = std::move(ops)});
  // [/snippet]
  const Digits training = make_digits(4096, 1);
  auto models =
      strategy.distribute_values_from_function([](tutti::ValueContext) { return make_model(); });
  auto optimizers = models.map([](const torch::nn::Sequential& model) {
    return std::make_shared<torch::optim::Adam>(model->parameters(), 3e-3);
  });
  constexpr int64_t kBatch = 128;
  double loss = 0;
  for (int64_t step = 0; step < 600; ++step) {
    const int64_t first = step * kBatch % training.labels.size(0);
    const auto losses = strategy.run(
        [&](torch::nn::Sequential model, std::shared_ptr<torch::optim::Adam> optimizer) {
          tutti::ReplicaContext& replica = *tutti::get_replica_context();
          const int64_t size = kBatch / replica.num_replicas_in_sync();
          const int64_t begin = first + size * replica.replica_id_in_sync_group();
          const at::Tensor logits = model->forward(training.images.narrow(0, begin, size));
          const at::Tensor share =
              torch::cross_entropy_loss(logits, training.labels.narrow(0, begin, size), {},
                                        at::Reduction::Sum) /
              kBatch;
          const auto parameters = model->parameters();
          auto gradients = torch::autograd::grad({share}, parameters);
          gradients = replica.all_reduce(tutti::ReduceOp::kSum, gradients);
          for (size_t i = 0; i < gradients.size(); ++i) parameters[i].mutable_grad() = gradients[i];
          optimizer->step();
          return share.item<double>();
        },
        models, optimizers);
    loss = strategy.reduce(tutti::ReduceOp::kSum, losses);
  }
  const Digits test = make_digits(2000, 2);
  torch::NoGradGuard no_grad;
  const at::Tensor right = models[0]->forward(test.images).argmax(1).eq(test.labels);
  return {loss, right.to(torch::kFloat64).mean().item<double>()};
}

}  // namespace

int main() {
  tutti::set_logical_cpu_devices(2);
  const auto plain = std::make_shared<PlainAllReduce>();
  const auto compressed = std::make_shared<CompressedAllReduce>();
  const Result without = train(plain);
  const Result with = train(compressed);
  const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  std::printf("float32: loss %.4f, %.1f MB\n", without.loss, megabytes(plain->bytes()));
  std::printf("float16: loss %.4f, %.1f MB\n", with.loss, megabytes(compressed->bytes()));
  const double part = megabytes(compressed->bytes()) / megabytes(plain->bytes());
  std::printf("%.0f %% of the bytes, accuracy %.0f %% instead of %.0f %%\n", 100 * part,
              100 * with.accuracy, 100 * without.accuracy);
  return with.accuracy > 0.98 && without.accuracy > 0.98 && part < 0.51 ? 0 : 1;
}
