// SPDX-License-Identifier: Apache-2.0
//
// Two replicas that share every batch fit a small network to a curve; the result
// is compared with plain LibTorch on whole batches.
//
// Shows: one network per replica, run(), all_reduce_ of gradients, reduce(); and
// what Tutti promises: the mathematics of one device, and bits that depend only
// on the replicas, not on how many of them run at the same time.
//
// Run:  make demo
// Expected last line: OK: the same mathematics, and the same bits\.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <torch/torch.h>
#include <tutti/tutti.h>

namespace {

constexpr int64_t kExamples = 500;
constexpr int64_t kBatch = 61;  // odd, and not a divisor: replicas get uneven shares
constexpr int kEpochs = 40;
constexpr double kLearningRate = 0.05;

torch::nn::Sequential make_net() {
  torch::manual_seed(7);  // the same initial values for every copy
  torch::nn::Sequential net(torch::nn::Linear(1, 32), torch::nn::Tanh(), torch::nn::Linear(32, 32),
                            torch::nn::Tanh(), torch::nn::Linear(32, 1));
  net->to(torch::kFloat64);
  return net;
}

struct Data {
  at::Tensor x = torch::linspace(-1, 1, kExamples, torch::kFloat64).reshape({-1, 1});
  at::Tensor y = torch::sin(3 * x) + 0.3 * x;
  at::Tensor order = [] {
    torch::manual_seed(1);
    return torch::randperm(kExamples);
  }();
};

struct Fit {
  std::vector<double> losses;  // one per epoch
  std::vector<at::Tensor> parameters;
};

void update(const torch::nn::Sequential& net) {
  torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    parameter -= kLearningRate * parameter.grad();
    parameter.mutable_grad().zero_();
  }
}

// Plain LibTorch: one network, whole batches.
Fit fit_plain(const Data& data) {
  Fit fit;
  torch::nn::Sequential net = make_net();
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    double sum = 0;
    for (const at::Tensor& rows : data.order.split(kBatch)) {
      at::Tensor error = net->forward(data.x.index({rows})) - data.y.index({rows});
      at::Tensor loss = error.square().sum() / rows.size(0);
      loss.backward();
      update(net);
      sum += loss.item<double>() * static_cast<double>(rows.size(0));
    }
    fit.losses.push_back(sum / kExamples);
  }
  fit.parameters = net->parameters();
  return fit;
}

// The same with a strategy: each replica has its own network and takes its share
// of the batch; gradients are summed, so the loss is divided by the whole batch.
Fit fit_replicas(const Data& data, const tutti::Strategy& strategy) {
  Fit fit;
  auto nets =
      strategy.distribute_values_from_function([](tutti::ValueContext) { return make_net(); });
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    double sum = 0;
    for (const at::Tensor& batch : data.order.split(kBatch)) {
      auto shares = strategy.distribute_values_from_function([&](tutti::ValueContext replica) {
        return batch.tensor_split(
            replica.num_replicas_in_sync)[static_cast<size_t>(replica.replica_id_in_sync_group)];
      });
      auto losses = strategy.run(
          [&](torch::nn::Sequential& net, const at::Tensor& rows) {
            at::Tensor error = net->forward(data.x.index({rows})) - data.y.index({rows});
            at::Tensor loss = error.square().sum() / batch.size(0);
            loss.backward();
            for (at::Tensor& parameter : net->parameters()) {
              tutti::get_replica_context()->all_reduce_(tutti::ReduceOp::kSum,
                                                        parameter.mutable_grad());
            }
            update(net);
            return loss.detach();
          },
          nets, shares);
      at::Tensor loss = strategy.reduce(tutti::ReduceOp::kSum, losses);
      sum += loss.item<double>() * static_cast<double>(batch.size(0));
    }
    fit.losses.push_back(sum / kExamples);
  }
  fit.parameters = nets[0]->parameters();
  return fit;
}

// The largest difference of a loss or of a parameter tensor, relative to its size.
double largest_difference(const Fit& a, const Fit& b) {
  double largest = 0;
  for (size_t i = 0; i < a.losses.size(); ++i) {
    largest = std::max(largest, std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]));
  }
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    const at::Tensor difference = (a.parameters[i] - b.parameters[i]).abs().max();
    largest = std::max(largest, (difference / b.parameters[i].abs().max()).item<double>());
  }
  return largest;
}

bool same_bits(const Fit& a, const Fit& b) {
  bool same = a.losses == b.losses;
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    same = same && std::memcmp(a.parameters[i].data_ptr(), b.parameters[i].data_ptr(),
                               a.parameters[i].nbytes()) == 0;
  }
  return same;
}

}  // namespace

int main() {
  const Data data;
  const std::vector<std::string> devices = {"CPU:0", "CPU:1"};
  std::printf("Fitting %lld points with plain LibTorch, then with two replicas ...\n",
              static_cast<long long>(kExamples));
  const Fit plain = fit_plain(data);
  const Fit together = fit_replicas(data, tutti::MirroredStrategy(devices));
  const Fit in_turn =
      fit_replicas(data, tutti::MirroredStrategy(devices, {.runner = {.concurrent_replicas = 1}}));

  const double difference = largest_difference(together, plain);
  const bool same = same_bits(together, in_turn);
  std::printf("loss before %.6f, after %.6f\n", together.losses.front(), together.losses.back());
  std::printf("largest relative difference to plain LibTorch: %.1e (at most 1e-12)\n", difference);
  std::printf("two replicas on two threads and on one thread at a time: %s\n",
              same ? "the same bits" : "DIFFERENT bits");
  if (!(difference <= 1e-12) || !same || !(together.losses.back() < together.losses.front())) {
    std::printf("FAILED\n");
    return 1;
  }
  std::printf("OK: the same mathematics, and the same bits.\n");
  return 0;
}
