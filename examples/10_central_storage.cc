// SPDX-License-Identifier: Apache-2.0
//
// One program under two strategies: MirroredStrategy keeps a copy of the parameters for each
// replica, CentralStorageStrategy one for all. Both end with the same bits in the parameters.
//
// Run:  build/release/bin/10_central_storage
// Expected last line: the same bits, with one copy of the parameters instead of four

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <torch/torch.h>
#include <tutti/tutti.h>

#include "digits.h"

namespace {

struct Result {
  std::vector<at::Tensor> parameters;
  double accuracy = 0;
  size_t parameter_bytes = 0;
  size_t state_bytes = 0;
};

// [snippet program]
Result train(const tutti::Strategy& strategy) {  // does not depend on the kind of strategy
  const Digits digits = make_digits(2000, 1);
  auto batches = strategy.distribute_dataset(
      tutti::data::from_tensor_slices(std::tuple(digits.images, digits.labels)).batch(100));
  auto model = tutti::replicate(strategy, [] {
    return torch::nn::Sequential(torch::nn::Linear(24, 512), torch::nn::ReLU(),
                                 torch::nn::Linear(512, 10));
  });
  tutti::DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(2e-3));
  for (int epoch = 0; epoch < 6; ++epoch) {
    for (auto& batch : batches) {
      strategy.run(
          [&](const at::Tensor& x, const at::Tensor& y) {
            optimizer.minimize(tutti::average_loss(
                torch::cross_entropy_loss(model->forward(x), y, {}, at::Reduction::None)));
          },
          batch);
    }
  }
  // [/snippet]
  Result result;
  for (const at::Tensor& each : model.primary().parameters()) {
    result.parameters.push_back(each.detach().clone());
  }
  const Digits test = make_digits(1000, 2);
  const at::Tensor right = model.primary().forward(test.images).argmax(1).eq(test.labels);
  result.accuracy = right.to(torch::kDouble).mean().item<double>();
  result.parameter_bytes = optimizer.parameter_bytes();
  result.state_bytes = optimizer.state_bytes();
  return result;
}

void print(const char* name, const Result& result) {
  std::printf("%-16s accuracy %.1f %%, parameters %6.1f kB, state of Adam %6.1f kB\n", name,
              100 * result.accuracy, static_cast<double>(result.parameter_bytes) / 1e3,
              static_cast<double>(result.state_bytes) / 1e3);
}

}  // namespace

int main() {
  tutti::set_logical_cpu_devices(4);
  // [snippet strategies]
  const std::vector<std::string> devices = {"CPU:0", "CPU:1", "CPU:2", "CPU:3"};
  const Result mirrored = train(tutti::MirroredStrategy(devices));
  const Result central = train(tutti::CentralStorageStrategy(devices, "CPU:0"));
  // [/snippet]
  print("mirrored", mirrored);
  print("central storage", central);
  bool same = true;
  for (size_t i = 0; i < central.parameters.size(); ++i) {
    same = same && std::memcmp(central.parameters[i].data_ptr(), mirrored.parameters[i].data_ptr(),
                               central.parameters[i].nbytes()) == 0;
  }
  const double times =
      static_cast<double>(mirrored.parameter_bytes) / static_cast<double>(central.parameter_bytes);
  if (!same || std::abs(times - 4) > 0.1 || mirrored.state_bytes != central.state_bytes ||
      central.accuracy < 0.95) {
    std::printf("FAILED: %s bits, %.1f times\n", same ? "the same" : "different", times);
    return 1;
  }
  std::printf("the same bits, with one copy of the parameters instead of four\n");
  return 0;
}
