// SPDX-License-Identifier: Apache-2.0
//
// Parameters without a gradient in a step, on some replicas or on all: the update is that of plain
// LibTorch, whose gradients are dropped before each backward.

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"

#include "tests/support/log_capture.h"
#include "tests/train/train_twins.h"

namespace tutti::missing_gradients_test {

using test::Batch;
using test::LogCapture;
using test::make_batch;
using test::my_id;
using test::TrainCase;
using test::Twin;

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr double kExact = 1e-12;

class MissingGradients : public testing::TestWithParam<TrainCase> {
 protected:
  Strategy strategy() const { return GetParam().make(); }
  int n() const { return GetParam().replicas; }
};

struct BranchyImpl : torch::nn::Module {
  BranchyImpl() {
    first = register_module("first", torch::nn::Linear(5, 4));
    left = register_module("left", torch::nn::Linear(4, 2));
    right = register_module("right", torch::nn::Linear(4, 2));
    never = register_module("never", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool to_left) {
    const at::Tensor hidden = torch::tanh(first(x));
    return (to_left ? left(hidden) : right(hidden)).pow(2).sum(1);
  }
  torch::nn::Linear first{nullptr}, left{nullptr}, right{nullptr}, never{nullptr};
};

TEST_P(MissingGradients, MayDifferByReplicaAndStep) {
  for (const bool fused : {true, false}) {
    for (const int64_t bucket : {64, 1 << 20}) {
      const LogCapture log;
      Twin<BranchyImpl, Adam, AdamOptions> twin(strategy(), AdamOptions(0.01).weight_decay(0.1),
                                                {.bytes_per_bucket = bucket, .fused = fused});
      const at::Tensor never = twin.model.primary().never->weight.detach().clone();
      for (uint64_t step = 0; step < 8; ++step) {
        const Batch x = make_batch(n(), step);
        // At first no replica uses the right branch.
        const auto goes_left = [&](int r) { return step < 3 || (step + r) % 2 == 0; };
        twin.strategy.run([&] {
          twin.optimizer.zero_grad();
          average_loss(twin.model->forward(x[my_id()], goes_left(my_id()))).backward();
          twin.optimizer.step();
        });
        test::drop_gradients(*twin.plain);
        std::vector<at::Tensor> losses;
        for (int r = 0; r < n(); ++r) losses.push_back(twin.plain->forward(x[r], goes_left(r)));
        at::cat(losses).mean().backward();
        twin.reference.step();
        twin.expect_equal(1e-11);
        if (HasFailure()) return;
      }
      EXPECT_TRUE(at::equal(twin.model.primary().never->weight, never)) << "no weight decay";
      for (const char* name : {"'never.weight'", "'never.bias'", "'right.weight'", "'left.bias'"}) {
        EXPECT_EQ(log.count(name), 1) << name << "\n" << log.text();
      }
      EXPECT_EQ(log.count("'first.weight'"), 0);
    }
  }
}

TEST_P(MissingGradients, MayBeGivenOrDroppedAfterSynchronize) {
  for (const bool fused : {true, false}) {
    Twin<BranchyImpl, SGD, SGDOptions> twin(strategy(), SGDOptions(0.1).momentum(0.9),
                                            {.fused = fused});
    for (uint64_t step = 0; step < 5; ++step) {
      const Batch x = make_batch(n(), step);
      const auto change = [step](BranchyImpl& net) {
        if (step % 2 == 0) return;
        net.right->weight.mutable_grad() = torch::ones({2, 4}, at::kDouble);
        net.left->bias.mutable_grad() = at::Tensor();
      };
      twin.strategy.run([&] {
        twin.optimizer.zero_grad();
        average_loss(twin.model->forward(x[my_id()], true)).backward();
        twin.optimizer.synchronize();
        change(*twin.model);
        twin.optimizer.step();
      });
      test::drop_gradients(*twin.plain);
      twin.plain->forward(at::cat(x), true).mean().backward();
      change(*twin.plain);
      twin.reference.step();
      twin.expect_equal(kExact);
      if (HasFailure()) return;
    }
  }
}

struct RareTableImpl : torch::nn::Module {
  RareTableImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 5).sparse(true)));
    dense = register_module("dense", torch::nn::Linear(5, 2));
  }
  at::Tensor forward(const at::Tensor& x, bool looks_up) {
    const at::Tensor rows = at::arange(x.size(0)).remainder(6);
    return dense(looks_up ? x + table(rows) : x).pow(2).sum(1);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear dense{nullptr};
};

// Adagrad counts the updates of a table in its learning rate.
TEST_P(MissingGradients, LeaveASparseTableThatNobodyUsesInAStepAlone) {
  for (const bool fused : {true, false}) {
    Twin<RareTableImpl, torch::optim::Adagrad, torch::optim::AdagradOptions> twin(
        strategy(), torch::optim::AdagradOptions(0.1).lr_decay(0.5), {.fused = fused});
    for (uint64_t step = 0; step < 6; ++step) {
      const Batch x = make_batch(n(), step);
      const bool looks_up = step % 3 != 1;
      twin.strategy.run([&] {
        twin.optimizer.zero_grad();
        average_loss(twin.model->forward(x[my_id()], looks_up)).backward();
        twin.optimizer.step();
      });
      test::drop_gradients(*twin.plain);
      std::vector<at::Tensor> losses;
      for (int r = 0; r < n(); ++r) losses.push_back(twin.plain->forward(x[r], looks_up));
      at::cat(losses).mean().backward();
      twin.reference.step();
      twin.expect_equal(1e-11, /*gradients=*/false);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, MissingGradients,
                         testing::Values(TrainCase{false, 1}, TrainCase{false, 2},
                                         TrainCase{false, 4}, TrainCase{true, 1},
                                         TrainCase{true, 3}),
                         test::train_case_name);

}  // namespace tutti::missing_gradients_test
