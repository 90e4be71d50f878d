// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/distributed_optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/train/loss.h"

#include "tests/support/expect_error.h"

namespace tutti::distributed_optimizer_test {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

MirroredStrategy mirrored(int n, int concurrent = 0) {
  std::vector<std::string> devices;
  for (int i = 0; i < n; ++i) devices.push_back(message("CPU:", i));
  return MirroredStrategy(devices, {.runner = {.concurrent_replicas = concurrent}});
}

at::Tensor per_example(const at::Tensor& out, const at::Tensor& y) {
  return torch::cross_entropy_loss(out, y, {}, at::Reduction::None);
}

template <class O, class Options>
void compare_with_plain(int replicas, Options options, double tolerance) {
  const Strategy strategy = mirrored(replicas);
  torch::manual_seed(7);
  auto model = replicate<NetImpl>(strategy);
  model.to(at::kDouble);
  NetImpl plain;
  plain.to(at::kDouble);
  {
    torch::NoGradGuard no_grad;
    auto from = model.primary().parameters();
    auto to = plain.parameters();
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  O reference(plain.parameters(), options);
  DistributedOptimizer<O> optimizer(model, options);
  for (int step = 0; step < 5; ++step) {
    const at::Tensor x = torch::randn({4 * replicas - 1, 5}, at::kDouble);
    const at::Tensor y = torch::randint(0, 3, {x.size(0)}, at::kLong);
    reference.zero_grad();
    per_example(plain.forward(x), y).mean().backward();
    reference.step();
    const auto part = [&](const at::Tensor& t, int r) {
      const int64_t begin = r * 4;
      return t.narrow(0, begin, std::min<int64_t>(4, t.size(0) - begin));
    };
    strategy.run([&] {
      const int r = get_replica_context()->replica_id_in_sync_group();
      const at::Tensor loss = average_loss(per_example(model->forward(part(x, r)), part(y, r)));
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    });
  }
  auto want = plain.named_parameters();
  model.for_each([&](NetImpl& copy) {
    for (const auto& parameter : copy.named_parameters()) {
      EXPECT_TRUE(at::allclose(parameter.value(), want[parameter.key()], tolerance, tolerance))
          << parameter.key();
      EXPECT_TRUE(at::allclose(parameter.value().grad(), want[parameter.key()].grad(), tolerance,
                               tolerance))
          << parameter.key();
    }
  });
}

TEST(DistributedOptimizer, GivesTheParametersOfOneDevice) {
  for (const int replicas : {1, 2, 3, 4}) {
    compare_with_plain<torch::optim::SGD>(replicas, torch::optim::SGDOptions(0.1).momentum(0.9),
                                          1e-12);
    compare_with_plain<torch::optim::Adam>(replicas, torch::optim::AdamOptions(0.01), 1e-9);
    compare_with_plain<torch::optim::AdamW>(replicas, torch::optim::AdamWOptions(0.01), 1e-9);
    compare_with_plain<torch::optim::Adagrad>(replicas, torch::optim::AdagradOptions(0.01), 1e-9);
    compare_with_plain<torch::optim::RMSprop>(replicas, torch::optim::RMSpropOptions(0.01), 1e-9);
  }
}

}  // namespace tutti::distributed_optimizer_test
