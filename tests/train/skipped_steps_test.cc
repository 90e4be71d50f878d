// SPDX-License-Identifier: Apache-2.0
//
// Steps that are skipped because a gradient is not finite leave no trace: neither in the counts of
// an optimizer, such as Adam's for its bias correction, nor in sparse tables.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/train/loss.h"
#include "tutti/train/optimizer/distributed_optimizer.h"
#include "tutti/train/optimizer/grad_scaler.h"

#include "tests/support/expect_error.h"
#include "tests/train/train_twins.h"

namespace tutti::skipped_steps_test {

using test::Batch;
using test::make_batch;
using test::my_id;
using test::TrainCase;
using test::Twin;
using test::TwoLayersImpl;

class SkippedSteps : public testing::TestWithParam<TrainCase> {};

INSTANTIATE_TEST_SUITE_P(Strategies, SkippedSteps, test::kTrainCases, test::train_case_name);

Batch bad_batch(int replicas) {
  Batch batch = make_batch(replicas, 0);  // rows for every replica
  batch.back().slice(0, 0, 1).fill_(std::nan(""));
  return batch;
}

// Every good step follows a skipped one.
template <class O, class Options>
void expect_no_trace(const Strategy& strategy, const Options& options, bool fused, bool scaled) {
  Twin<TwoLayersImpl, O, Options> twin(
      strategy, options,
      {.non_finite = scaled ? NonFinite::kIgnore : NonFinite::kSkip, .fused = fused});
  GradScaler scaler(strategy, {.init_scale = 1024});  // powers of two, so that scaling is exact
  const auto step = [&](const Batch& batch, bool good) {
    strategy.run([&] {
      twin.optimizer.zero_grad();
      const at::Tensor loss = average_loss(twin.model->forward(batch[my_id()]));
      StepResult result;
      if (scaled) {
        scaler.scale(loss).backward();
        result = scaler.step(twin.optimizer);
        scaler.update();
      } else {
        loss.backward();
        result = twin.optimizer.step();
      }
      EXPECT_EQ(result.updated, good);
      EXPECT_EQ(result.non_finite, !good);
    });
  };
  for (uint64_t i = 0; i < 4; ++i) {
    step(bad_batch(twin.n()), false);
    const Batch batch = make_batch(twin.n(), i);
    step(batch, true);
    twin.plain_step(batch);
    twin.expect_equal(1e-11, /*gradients=*/false);
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(SkippedSteps, DoNotCountInTheBiasCorrectionOfAdam) {
  const Strategy strategy = GetParam().make();
  for (const bool fused : {true, false}) {
    for (const bool scaled : {false, true}) {
      SCOPED_TRACE(testing::Message() << "fused " << fused << ", scaled " << scaled);
      expect_no_trace<torch::optim::Adam>(strategy, torch::optim::AdamOptions(0.05), fused, scaled);
      expect_no_trace<torch::optim::AdamW>(strategy, torch::optim::AdamWOptions(0.05), fused,
                                           scaled);
    }
  }
}

TEST_P(SkippedSteps, DoNotCountInTheDecayOfAdagrad) {
  const Strategy strategy = GetParam().make();
  for (const bool scaled : {false, true}) {
    expect_no_trace<torch::optim::Adagrad>(
        strategy, torch::optim::AdagradOptions(0.05).lr_decay(0.5), true, scaled);
  }
}

// ---- sparse tables -----------------------------------------------------------------------------

struct TableImpl : torch::nn::Module {
  TableImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)));
    dense = register_parameter("dense", torch::ones({3}));
    to(at::kDouble);
  }
  // The factor affects only the gradient of the table.
  at::Tensor forward(const at::Tensor& rows, double factor) {
    return (table(rows) * factor).sum() + (dense * 2).sum();
  }
  torch::nn::Embedding table{nullptr};
  at::Tensor dense;
};

using Adagrad = DistributedOptimizer<torch::optim::Adagrad>;

struct Tables {
  Tables(const Strategy& on, NonFinite non_finite)
      : strategy(on),
        model((torch::manual_seed(4), replicate<TableImpl>(on))),
        optimizer(model, torch::optim::AdagradOptions(0.1).lr_decay(0.5),
                  {.non_finite = non_finite}) {}

  // The gradient of the last replica has this factor.
  std::vector<StepResult> step(int64_t number, double factor) {
    const int last = strategy.num_replicas_in_sync() - 1;
    std::vector<StepResult> results(static_cast<size_t>(last) + 1);
    strategy.run([&] {
      const auto id = static_cast<int64_t>(my_id());
      optimizer.zero_grad();
      model
          ->forward(at::tensor({(number + id) % 6, (number + 2 * id + 1) % 6}),
                    id == last ? factor : 1.5)
          .backward();
      results[my_id()] = optimizer.step();
    });
    return results;
  }
  std::string bytes() const { return test::parameter_bytes(model.primary()); }

  Strategy strategy;
  Replicated<TableImpl> model;
  Adagrad optimizer;
};

const std::vector<double> kNotFinite = {std::numeric_limits<double>::infinity(),
                                        -std::numeric_limits<double>::infinity(), std::nan("")};

TEST_P(SkippedSteps, AreNoticedByTheGradientOfASparseTableAlone) {
  const Strategy strategy = GetParam().make();
  for (const double number : kNotFinite) {
    Tables tables(strategy, NonFinite::kSkip);
    tables.step(0, 1.5);
    const std::string before = tables.bytes();
    for (const StepResult& each : tables.step(1, number)) {
      EXPECT_FALSE(each.updated);
      EXPECT_TRUE(each.non_finite);
    }
    EXPECT_TRUE(tables.bytes() == before);
    Tables stops(strategy, NonFinite::kStop);
    EXPECT_TUTTI_ERROR(stops.step(0, number), ErrorCode::kDataLoss, "table.weight", "not finite");
  }
}

TEST_P(SkippedSteps, DoNotCountForASparseTable) {
  const Strategy strategy = GetParam().make();
  Tables undisturbed(strategy, NonFinite::kSkip);
  Tables disturbed(strategy, NonFinite::kSkip);
  for (int64_t i = 0; i < 4; ++i) {
    undisturbed.step(i, 1.5);
    disturbed.step(i + 1, kNotFinite[0]);
    disturbed.step(i, 1.5);
    EXPECT_TRUE(disturbed.bytes() == undisturbed.bytes()) << "after " << i + 1 << " updates";
  }
}

}  // namespace tutti::skipped_steps_test
