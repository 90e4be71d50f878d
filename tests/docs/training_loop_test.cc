// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/training-loop.md that is not in the examples.

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace training_loop_docs_test {

using tutti::ErrorCode;
using tutti::ReduceOp;

const std::vector<std::string> kTwo = {"CPU:0", "CPU:1"};

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t inputs, int64_t outputs) {
    body = register_module("body", torch::nn::Linear(inputs, 8));
    head = register_module("head", torch::nn::Linear(8, outputs));
  }
  at::Tensor forward(const at::Tensor& x) { return head(torch::tanh(body(x))); }
  torch::nn::Linear body{nullptr}, head{nullptr};
};
TORCH_MODULE(Net);

const at::Tensor kRows = torch::linspace(-1, 1, 24).reshape({8, 3});

at::Tensor my_rows() {
  return kRows.chunk(
      2)[static_cast<size_t>(tutti::get_replica_context()->replica_id_in_sync_group())];
}

double largest_difference(const tutti::Replicated<Net>& model) {
  double largest = 0;
  for (const auto& [name, parameter] : model.named_parameters()) {
    largest = std::max(largest, (parameter[0] - parameter[1]).abs().max().item<double>());
  }
  return largest;
}

TEST(TrainingLoop, ModelsAreMadeInThreeWays) {
  tutti::MirroredStrategy strategy(kTwo);
  auto loaded = Net(3, 2);
  // [snippet models]
  auto model = tutti::replicate<Net>(strategy, 3, 2);  // Net(3, 2) on each replica

  auto small = tutti::replicate(strategy, [] {  // a factory, called for each replica
    torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::BatchNorm1d(8));
    tutti::convert_sync_batch_norm(net);
    return net;
  });

  auto adopted = tutti::adopt(strategy, loaded, [] { return Net(3, 2); });  // an existing module
  // [/snippet]
  EXPECT_EQ(largest_difference(model), 0);
  EXPECT_TRUE(adopted.primary().body->weight.equal(loaded->body->weight));
  EXPECT_EQ(small.primary().size(), 2U);
  EXPECT_TUTTI_ERROR(model->forward(kRows), ErrorCode::kFailedPrecondition, "");
}

TEST(TrainingLoop, GroupsHaveOptionsOfTheirOwn) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  // [snippet groups]
  const std::vector<tutti::ParameterGroup<torch::optim::AdamWOptions>> groups = {
      {.parameters = {"body.weight", "body.bias"}, .options = {1e-4}},
      {.parameters = {"head.weight", "head.bias"}, .options = {1e-2}}};
  tutti::DistributedOptimizer<torch::optim::AdamW> optimizer(model, groups);
  // [/snippet]
  EXPECT_EQ(optimizer.param_groups().size(), 2U);
  const at::Tensor before = model.primary().body->weight.detach().clone();
  strategy.run(
      [&] { optimizer.minimize(tutti::average_loss(model->forward(my_rows()).square())); });
  EXPECT_LT((model.primary().body->weight - before).abs().max().item<double>(), 1.1e-4);
}

TEST(TrainingLoop, SchedulersOfLibTorchWork) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  // [snippet scheduler]
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  for (int epoch = 0; epoch < 3; ++epoch) {
    strategy.run(
        [&] { optimizer.minimize(tutti::average_loss(model->forward(my_rows()).square())); });
    scheduler.step();  // between runs
  }
  // [/snippet]
  const auto rate = [](torch::optim::Optimizer& any) {
    return static_cast<torch::optim::SGDOptions&>(any.param_groups()[0].options()).lr();
  };
  torch::optim::SGD plain(Net(3, 1)->parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::StepLR plain_scheduler(plain, 1, 0.5);
  for (int epoch = 0; epoch < 3; ++epoch) plain_scheduler.step();
  EXPECT_EQ(rate(optimizer), rate(plain));
  EXPECT_LT(rate(optimizer), 0.1);
}

TEST(TrainingLoop, GradientsOfSeveralBatchesAddUp) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  const auto loss_of = [&](const at::Tensor& x) { return model->forward(x).square(); };
  strategy.run([&] {
    const at::Tensor first = my_rows().slice(0, 0, 3);
    const at::Tensor second = my_rows().slice(0, 3);
    // [snippet no_sync]
    optimizer.zero_grad();
    {
      auto only_here = optimizer.no_sync();
      optimizer.average_loss(loss_of(first)).backward();
    }
    optimizer.average_loss(loss_of(second)).backward();  // summed over the replicas now
    optimizer.step();
    // [/snippet]
  });
  EXPECT_EQ(largest_difference(model), 0);
}

TEST(TrainingLoop, GradientsCanBeReadBeforeTheStep) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  auto norms = strategy.run([&] {
    // [snippet synchronize]
    optimizer.zero_grad();
    tutti::average_loss(model->forward(my_rows()).square()).backward();
    optimizer.synchronize();  // gradients are the sums over all replicas from here on
    double norm = model->head->weight.grad().norm().item<double>();
    for (at::Tensor& each : model->parameters()) each.mutable_grad().clamp_(-0.1, 0.1);
    optimizer.step();
    // [/snippet]
    return norm;
  });
  EXPECT_EQ(norms[0], norms[1]);
  EXPECT_EQ(largest_difference(model), 0);
}

TEST(TrainingLoop, StepsThatAreNotFiniteCanBeLeftOut) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  // [snippet options]
  tutti::DistributedOptimizer<torch::optim::Adam> optimizer(
      model, torch::optim::AdamOptions(1e-3),
      {.clip_norm = 1.0, .non_finite = tutti::NonFinite::kSkip, .check_every = 10});
  // [/snippet]
  const at::Tensor before = model.primary().head->weight.detach().clone();
  auto results = strategy.run([&] {
    const bool bad = tutti::get_replica_context()->replica_id_in_sync_group() == 1;
    const double factor = bad ? std::numeric_limits<double>::infinity() : 1;
    // [snippet result]
    tutti::StepResult result =
        optimizer.minimize(tutti::average_loss(model->forward(my_rows()).square()) * factor);
    bool left_out = result.non_finite;  // the same on every replica
    // [/snippet]
    return left_out;
  });
  EXPECT_TRUE(results[0]);
  EXPECT_TRUE(results[1]);
  EXPECT_TRUE(model.primary().head->weight.equal(before));
}

TEST(TrainingLoop, ALossCanHaveWeightsAndAPenalty) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  auto losses = strategy.run([&] {
    const at::Tensor x = my_rows();
    const at::Tensor weights = x.select(1, 0).gt(-0.5);
    // [snippet loss]
    at::Tensor per_example = model->forward(x).square().sum(1);      // [rows], not reduced
    at::Tensor loss = tutti::average_loss(per_example, weights);     // by the weights of all rows
    at::Tensor penalty = 1e-4 * model->head->weight.square().sum();  // the same on every replica
    loss = loss + tutti::scale_regularization_loss(penalty);
    // [/snippet]
    return loss.item<double>();
  });
  auto& net = model.primary();
  const at::Tensor each = net.forward(kRows).square().sum(1);
  const at::Tensor w = kRows.select(1, 0).gt(-0.5).to(torch::kFloat);
  const at::Tensor want = (each * w).sum() / w.sum() + 1e-4 * net.head->weight.square().sum();
  EXPECT_NEAR(strategy.reduce(ReduceOp::kSum, losses), want.item<double>(), 1e-6);
}

TEST(TrainingLoop, ASecondBackwardIsAnError) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  const auto twice = [&](bool step_between) {
    strategy.run([&] {
      const auto backward = [&] {
        tutti::average_loss(model->forward(my_rows()).square()).backward();
      };
      optimizer.zero_grad();
      backward();
      if (step_between) optimizer.step();
      backward();
      optimizer.step();
    });
  };
  EXPECT_TUTTI_ERROR(twice(false), ErrorCode::kFailedPrecondition, "a second time before step");
  EXPECT_TUTTI_ERROR(twice(true), ErrorCode::kFailedPrecondition, "Call zero_grad");
}

TEST(TrainingLoop, ACopyThatWasChangedAloneIsFound) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  tutti::DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1),
                                                           {.check_every = 1});
  {
    torch::NoGradGuard no_grad;
    model.primary().head->bias.add_(1);
  }
  const auto step = [&] {
    strategy.run(
        [&] { optimizer.minimize(tutti::average_loss(model->forward(my_rows()).square())); });
  };
  EXPECT_TUTTI_ERROR(step(), ErrorCode::kDataLoss, "'head.bias' of replica 1 differs");
  // [snippet copy]
  model.copy_from_primary();
  // [/snippet]
  step();
  EXPECT_EQ(largest_difference(model), 0);
}

TEST(TrainingLoop, ABackwardThroughAModelOfAnotherOptimizer) {
  tutti::MirroredStrategy strategy(kTwo);
  auto generator = tutti::replicate<Net>(strategy, 3, 2);
  auto critic = tutti::replicate<Net>(strategy, 2, 1);
  using Sgd = tutti::DistributedOptimizer<torch::optim::SGD>;
  Sgd generator_optimizer(generator, torch::optim::SGDOptions(0.1));
  Sgd critic_optimizer(critic, torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    strategy.run([&] {
      // [snippet two_models]
      at::Tensor made = generator->forward(my_rows());
      critic_optimizer.minimize(tutti::average_loss(critic->forward(made.detach()).square()));

      generator_optimizer.zero_grad();
      tutti::average_loss(critic->forward(made)).backward();  // goes through the critic too
      generator_optimizer.step();
      // [/snippet]
    });
  }
  EXPECT_EQ(largest_difference(generator), 0);
  EXPECT_EQ(largest_difference(critic), 0);
}

TEST(TrainingLoop, ModelsAreSavedFromThePrimary) {
  tutti::MirroredStrategy strategy(kTwo);
  auto model = tutti::replicate<Net>(strategy, 3, 1);
  const at::Tensor before = model.primary().head->weight.detach().clone();
  const std::string path = testing::TempDir() + "training_loop_docs_test.pt";
  // [snippet save]
  auto module = model.primary_ptr();
  torch::save(module, path);
  // [/snippet]
  {
    torch::NoGradGuard no_grad;
    model.for_each([](NetImpl& copy) { copy.head->weight.zero_(); });
  }
  // [snippet load]
  torch::load(module, path);
  model.copy_from_primary();
  // [/snippet]
  for (const at::Tensor& copy : model.parameter("head.weight")) EXPECT_TRUE(copy.equal(before));
  std::remove(path.c_str());
}

}  // namespace training_loop_docs_test
