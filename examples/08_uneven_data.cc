// SPDX-License-Identifier: Apache-2.0
//
// Data that does not divide evenly: batches of 10 rows for four replicas, and a last batch of 3
// rows that leaves one replica with nothing. With average_loss() and SyncBatchNorm the parameters
// equal those of one device that sees whole batches, to 12 digits; with the mean of the replicas'
// means, the usual mistake, they do not.
//
// Run:  build/release/bin/08_uneven_data
// Expected last line: OK: uneven replicas do not change the result

#include <algorithm>
#include <cstdio>

#include <torch/torch.h>
#include <tutti/tutti.h>

namespace {

// [snippet net]
struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(3, 16));
    norm = register_module("norm", tutti::nn::SyncBatchNorm1d(16));  // not torch::nn::BatchNorm1d
    last = register_module("last", torch::nn::Linear(16, 1));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  tutti::nn::SyncBatchNorm1d norm{nullptr};
};
// [/snippet]

struct Data {
  at::Tensor x = torch::randn({63, 3}, torch::kDouble);  // 6 batches of 10 rows and one of 3
  at::Tensor y = torch::sin(x.sum(1, true));
  at::Tensor weights = torch::rand({63, 1}, torch::kDouble);  // of examples
};

// Parameters and buffers.
std::vector<at::Tensor> tensors_of(const Net& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& each : net.parameters()) all.push_back(each.detach().clone());
  for (const at::Tensor& each : net.buffers()) all.push_back(each.to(torch::kDouble));
  return all;
}

// Six epochs of plain LibTorch.
std::vector<at::Tensor> train_on_one_device(const Data& data) {
  torch::manual_seed(7);
  Net net;  // outside of a strategy SyncBatchNorm is a BatchNorm
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 6 * 7; ++step) {
    const int64_t begin = step % 7 * 10;
    const int64_t end = std::min<int64_t>(begin + 10, 63);
    const at::Tensor weights = data.weights.slice(0, begin, end);
    const at::Tensor errors =
        (net.forward(data.x.slice(0, begin, end)) - data.y.slice(0, begin, end)).square();
    optimizer.zero_grad();
    ((errors * weights).sum() / weights.sum()).backward();
    optimizer.step();
  }
  return tensors_of(net);
}

std::vector<at::Tensor> train(const Data& data, int replicas, bool exact) {
  std::vector<std::string> devices;
  for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
  tutti::MirroredStrategy strategy(devices, {.runner = {.threads_per_replica = 1}});
  auto batches = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(data.x, data.y, data.weights)).batch(10));
  torch::manual_seed(7);
  auto model = tutti::replicate<Net>(strategy);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (auto& batch : batches) {
      // [snippet step]
      strategy.run(
          [&](const at::Tensor& x, const at::Tensor& y, const at::Tensor& weights) {
            at::Tensor errors = (model->forward(x) - y).square();  // possibly of 0 rows
            at::Tensor loss = tutti::average_loss(errors, weights);
            if (!exact) {  // wrong: a replica with one row counts as much as one with three
              const auto sum = weights.sum().clamp_min(1e-9);
              loss = (errors * weights).sum() / sum / strategy.num_replicas_in_sync();
            }
            optimizer.minimize(loss);
          },
          batch);
      // [/snippet]
    }
  }
  return tensors_of(model.primary());
}

double difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor each = (a[i] - b[i]).abs().max() / b[i].abs().max();
    largest = std::max(largest, each.item<double>());
  }
  return largest;
}

}  // namespace

int main() {
  tutti::set_logical_cpu_devices(4);
  torch::set_num_threads(1);  // the tensors are too small for more threads
  torch::manual_seed(1);
  const Data data;
  const auto one = train_on_one_device(data);
  bool right = true;
  std::printf("42 steps on batches of 10 rows, the last of 3; difference to one device:\n");
  for (const int replicas : {1, 2, 3, 4}) {
    const double exact = difference(train(data, replicas, true), one);
    const double mean_of_means = difference(train(data, replicas, false), one);
    std::printf("%d replica%s average_loss %.1e   mean of means %.1e\n", replicas,
                replicas == 1 ? ":  " : "s: ", exact, mean_of_means);
    right = right && exact <= 1e-12 && (replicas == 1 || mean_of_means > 1e-3);
  }
  std::printf(right ? "OK: uneven replicas do not change the result\n" : "FAILED\n");
  return right ? 0 : 1;
}
