// SPDX-License-Identifier: Apache-2.0
//
// A replicated model with its distributed optimizer, next to the same model with plain LibTorch on
// one device. forward() of a model here returns one loss for each row.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"

#include "tests/support/tensors.h"
#include "tests/train/train_strategies.h"

namespace tutti::test {

using Batch = std::vector<at::Tensor>;  ///< The rows of each replica.

struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return (second(torch::tanh(first(x))) - 0.5).pow(2).sum(1);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

inline void copy_values(torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  const auto source = from.named_parameters();
  for (auto& each : to.named_parameters()) each.value().copy_(source[each.key()]);
}

/// Checks that |a - b| <= tolerance * |b|, by the largest elements.
inline testing::AssertionResult near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (!a.defined() || !b.defined()) {
    if (a.defined() == b.defined()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "only one of them is defined";
  }
  if (a.sizes() != b.sizes()) return testing::AssertionFailure() << a.sizes() << b.sizes();
  if (a.numel() == 0) return testing::AssertionSuccess();
  const at::Tensor x = a.detach().to(at::kDouble);
  const at::Tensor y = b.detach().to(at::kDouble);
  const auto difference = (x - y).abs().max().item<double>();
  const auto size = y.abs().max().item<double>();
  if (difference <= tolerance * size) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "the difference is " << difference << " of " << size;
}

/// Makes uneven rows for every replica, at least one in total; some replicas have none.
inline Batch make_batch(int replicas, uint64_t seed, at::ScalarType dtype = at::kDouble,
                        int64_t columns = 5) {
  const auto splits = ragged_splits(4);
  Batch batch;
  for (int r = 0; r < replicas; ++r) {
    const int64_t rows = splits[seed % splits.size()][r % 4] + (r == 0 && replicas == 1 ? 1 : 0);
    batch.push_back(random_tensor({rows, columns}, dtype, seed * 64 + static_cast<uint64_t>(r)));
  }
  int64_t all = 0;
  for (const at::Tensor& each : batch) all += each.size(0);
  if (all == 0) batch.back() = random_tensor({1, columns}, dtype, seed);
  return batch;
}

/// Does what zero_grad() of optimizers does since LibTorch 2; before, it left zeros.
inline void drop_gradients(torch::nn::Module& module) {
  for (at::Tensor& each : module.parameters()) each.mutable_grad() = at::Tensor();
}

template <class Net, class O, class Options>
struct Twin {
  Twin(const Strategy& on, const Options& options,
       const DistributedOptimizerOptions& distributed = {}, at::ScalarType type = at::kDouble)
      : Twin(on, type, options, distributed) {}

  /// Makes a step of both.
  void step(uint64_t seed) { step(make_batch(n(), seed, dtype)); }
  void step(const Batch& batch) {
    distributed_step(batch);
    plain_step(batch);
  }

  void distributed_step(const Batch& batch) {
    strategy.run([&] {
      optimizer.zero_grad();
      average_loss(model->forward(batch[my_id()])).backward();
      optimizer.step();
    });
  }

  void plain_backward(const Batch& batch) {
    drop_gradients(*plain);
    plain->forward(at::cat(batch)).mean().backward();
  }
  void plain_step(const Batch& batch) {
    plain_backward(batch);
    reference.step();
  }

  void expect_equal(double tolerance, bool gradients = true) const {
    const auto want = plain->named_parameters();
    model.for_each([&](Net& copy, int replica) {
      for (const auto& each : copy.named_parameters()) {
        EXPECT_TRUE(near(each.value(), want[each.key()], tolerance))
            << each.key() << " of replica " << replica;
        if (!gradients) continue;
        EXPECT_TRUE(near(each.value().grad(), want[each.key()].grad(), tolerance))
            << "gradient of " << each.key() << " of replica " << replica;
      }
    });
  }

  int n() const { return strategy.num_replicas_in_sync(); }

  Strategy strategy;
  at::ScalarType dtype;
  Replicated<Net> model;
  std::shared_ptr<Net> plain;
  DistributedOptimizer<O> optimizer;
  O reference;

 private:
  Twin(const Strategy& on, at::ScalarType type, const Options& options,
       const DistributedOptimizerOptions& distributed)
      : strategy(on),
        dtype(type),
        model(make_model(on, type)),
        plain(make_plain(model, type)),
        optimizer(model, options, distributed),
        reference(plain->parameters(), options) {}

  static Replicated<Net> make_model(const Strategy& on, at::ScalarType type) {
    torch::manual_seed(7);
    Replicated<Net> made = replicate<Net>(on);
    made.to(type);
    return made;
  }
  static std::shared_ptr<Net> make_plain(const Replicated<Net>& like, at::ScalarType type) {
    auto made = std::make_shared<Net>();
    made->to(type);
    copy_values(like.primary(), *made);
    return made;
  }
};

/// The bytes of all parameters of one copy.
inline std::string parameter_bytes(const torch::nn::Module& module) {
  std::string bytes;
  for (const at::Tensor& each : module.parameters()) {
    const at::Tensor host = each.detach().contiguous();
    bytes.append(static_cast<const char*>(host.data_ptr()), host.nbytes());
  }
  return bytes;
}

}  // namespace tutti::test
