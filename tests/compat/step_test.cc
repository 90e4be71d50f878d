// SPDX-License-Identifier: Apache-2.0
//
// The Step classes and experimental_run_steps_on_iterator.

#include "tutti/compat/v1/step.h"

#include <any>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"
#include "tutti/train/replicated.h"

#include "tests/compat/document_examples.h"
#include "tests/support/expect_error.h"

namespace tutti::compat_test {

const std::vector<std::string> kTwoCpus = {"CPU:0", "CPU:1"};

TEST(V1Steps, KeepTheOutputsOfTheLastIteration) {
  const v1::MirroredStrategy strategy(kTwoCpus);
  const auto iterator = strategy.make_dataset_iterator(data::range(8).batch(2));
  const auto step = [&](const v1::MultiStepContext& context, const auto& batch) {
    const auto sums = strategy.extended().call_for_each_replica(
        [&](const at::Tensor& x) {
          context.set_last_step_output("combined", x.sum(), ReduceOp::kSum);
          context.set_non_tensor_output("rows", x.size(0));
          return x.sum();
        },
        batch);
    context.set_last_step_output("separate", sums);
    context.set_last_step_output("mean", sums, ReduceOp::kMean);
    context.set_non_tensor_output("text", std::string("last"));
  };
  const auto context = strategy.extended().experimental_run_steps_on_iterator(
      step, iterator, 3, {{"unset", torch::tensor(7)}, {"combined", torch::tensor(-1)}});
  EXPECT_EQ(context.last_step_outputs().at("combined").item<int>(), 9);
  EXPECT_EQ(context.last_step_outputs().at("mean").item<float>(), 4.5F);
  EXPECT_EQ(context.last_step_outputs().at("unset").item<int>(), 7);
  EXPECT_EQ(context.last_step_per_replica_outputs().at("separate")[1].item<int>(), 5);
  EXPECT_EQ(std::any_cast<std::string>(context.non_tensor_outputs().at("text")), "last");
  EXPECT_EQ(std::any_cast<PerReplica<int64_t>>(context.non_tensor_outputs().at("rows"))[1], 1);
  EXPECT_EQ(floats(iterator.get_next()[0]), std::vector<float>{6});  // three steps were read
}

TEST(V1Steps, RefuseAnOutputOfReplicasWithoutAReduceOp) {
  const v1::MirroredStrategy strategy(kTwoCpus);
  const v1::MultiStepContext context;
  EXPECT_TUTTI_ERROR(strategy.run([&] { context.set_last_step_output("loss", torch::ones({})); }),
                     ErrorCode::kInvalidArgument,
                     "\"loss\" was set by replicas without a ReduceOp");
}

// y = 2 x, learnt from batches of two rows for each replica; compared with a plain loop.
TEST(V1Steps, ASingleLossStepTrainsAsAPlainLoopDoes) {
  const torch::Tensor x = torch::arange(1, 9, torch::kDouble).reshape({8, 1}) / 8;
  const torch::Tensor weight = torch::full({1, 1}, 0.5, torch::kDouble);
  const auto model_of = [&] {
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    model->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    model->weight.copy_(weight);
    return model;
  };

  torch::nn::Linear plain = model_of();
  torch::optim::SGD plain_sgd(plain->parameters(), 0.1);
  for (int i = 0; i < 6; ++i) {
    const torch::Tensor rows = x.slice(0, 4 * (i % 2), 4 * (i % 2) + 4);
    plain_sgd.zero_grad();
    (plain->forward(rows) - 2 * rows).square().mean().backward();
    plain_sgd.step();
  }

  const v1::MirroredStrategy strategy(kTwoCpus);
  auto model = replicate(strategy, model_of);
  DistributedOptimizer<torch::optim::SGD> optimizer(model, torch::optim::SGDOptions(0.1));
  const auto dataset_fn = [&] { return data::from_tensor_slices(x).batch(2).repeat(); };
  const auto loss_fn = [&](const v1::MultiStepContext& context, const torch::Tensor& rows) {
    const auto loss = average_loss((model->forward(rows) - 2 * rows).square());
    context.set_last_step_output("loss", loss.detach(), ReduceOp::kSum);
    return loss;
  };
  v1::StandardSingleLossStep step(dataset_fn, loss_fn, optimizer, strategy,
                                  /*iterations_per_step=*/2);
  step.initialize();
  double before = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double loss = step().last_step_outputs().at("loss").item<double>();
    EXPECT_LT(loss, before);
    before = loss;
  }
  EXPECT_TRUE(torch::allclose(model.primary().weight, plain->weight, 1e-12, 0));
  EXPECT_TRUE(step.distribution() == strategy);
}

}  // namespace tutti::compat_test
