// SPDX-License-Identifier: Apache-2.0
//
// Losses of replicas against the same mathematics on all rows at once, by plain autograd.

#include "tutti/train/loss.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"
#include "tests/train/train_strategies.h"

namespace tutti::loss_test {

using test::my_id;
using test::ragged_splits;
using test::random_tensor;
using test::scalar;
using test::split_rows;
using test::tensor;

constexpr auto kInvalid = ErrorCode::kInvalidArgument;
constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;
constexpr int64_t kInputs = 4;
constexpr int64_t kOutputs = 3;

// One loss for each row, or for each row and output.
at::Tensor losses(const at::Tensor& w, const at::Tensor& rows, bool by_output) {
  const at::Tensor all = at::sin(rows.matmul(w)) * 2 + rows.matmul(w).pow(2);
  return by_output ? all : all.sum(1);
}

enum class Weights { kNone, kReal, kCounts, kMask, kBroadcast, kMostlyZero };
constexpr Weights kAllWeights[] = {Weights::kNone, Weights::kReal,      Weights::kCounts,
                                   Weights::kMask, Weights::kBroadcast, Weights::kMostlyZero};

std::optional<at::Tensor> make_weights(Weights kind, int64_t rows, bool by_output) {
  const std::vector<int64_t> shape =
      by_output ? std::vector<int64_t>{rows, kOutputs} : std::vector<int64_t>{rows};
  const at::Tensor real = random_tensor(shape, at::kDouble, 8).abs();
  switch (kind) {
    case Weights::kNone:
      return std::nullopt;
    case Weights::kReal:
      return real;
    case Weights::kCounts:
      return (real * 100).to(at::kLong);
    case Weights::kMask:
      return real > 0.2;
    case Weights::kBroadcast:
      return by_output ? real.slice(1, 0, 1).to(at::kFloat) : real.to(at::kFloat);
    case Weights::kMostlyZero: {
      at::Tensor zeros = at::zeros(shape, at::kDouble);
      zeros.slice(0, rows - 1, rows).fill_(2.5);
      return zeros;
    }
  }
  return std::nullopt;
}

struct Expected {
  double loss;
  at::Tensor gradient;
  double weight;
};

// Averages all rows on one device in a plain loop.
Expected on_one_device(const at::Tensor& rows, const std::optional<at::Tensor>& weights,
                       bool by_output) {
  const at::Tensor w = random_tensor({kInputs, kOutputs}, at::kDouble, 2).requires_grad_(true);
  const at::Tensor each = losses(w, rows, by_output);
  const at::Tensor flat = each.reshape({-1});
  const at::Tensor factors =
      weights ? weights->to(at::kDouble).expand(each.sizes()).reshape({-1}).contiguous()
              : at::ones({flat.numel()}, at::kDouble);
  double total = 0;
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    total += factors.data_ptr<double>()[i];
    sum = sum + flat[i] * factors.data_ptr<double>()[i];
  }
  const at::Tensor loss = sum / total;
  loss.backward();
  return {loss.item<double>(), w.grad(), total};
}

testing::AssertionResult near(const at::Tensor& actual, const at::Tensor& expected) {
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double distance = (actual - expected).abs().max().item<double>() / scale;
  if (distance <= 1e-12) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "relative difference " << distance;
}

class Loss : public testing::TestWithParam<test::TrainCase> {
 protected:
  // A loss and its gradient, both summed over the replicas.
  using Result = std::pair<double, at::Tensor>;

  template <class F>
  Result run(const F& loss_of, const at::Tensor& rows, const std::optional<at::Tensor>& weights,
             const std::vector<int64_t>& split) const {
    const auto some = split_rows(weights.value_or(at::zeros({rows.size(0)})), split);
    const auto results = strategy_.run(
        [&](const at::Tensor& mine, const at::Tensor& mine_weights) {
          const at::Tensor w =
              random_tensor({kInputs, kOutputs}, at::kDouble, 2).requires_grad_(true);
          std::optional<at::Tensor> own;
          if (weights) own = mine_weights;
          const at::Tensor loss = loss_of(w, mine, own);
          EXPECT_EQ(loss.dim(), 0);
          loss.backward();
          return std::pair(loss.item<double>(), w.grad());
        },
        split_rows(rows, split), some);
    Result sum{0, at::zeros({kInputs, kOutputs}, at::kDouble)};
    for (const auto& [loss, gradient] : results) {
      sum.first += loss;
      sum.second += gradient;
    }
    return sum;
  }

  int n() const { return GetParam().replicas; }
  std::vector<std::vector<int64_t>> splits() const { return ragged_splits(n()); }
  static int64_t total(const std::vector<int64_t>& split) {
    return std::accumulate(split.begin(), split.end(), int64_t{0});
  }

  const Strategy strategy_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(All, Loss, test::kTrainCases, test::train_case_name);

TEST_P(Loss, TheAverageAndItsGradientAreThoseOfOneDevice) {
  for (const std::vector<int64_t>& split : splits()) {
    if (total(split) == 0) continue;
    const at::Tensor rows = random_tensor({total(split), kInputs}, at::kDouble, 1);
    for (const bool by_output : {false, true}) {
      for (const Weights kind : kAllWeights) {
        const auto weights = make_weights(kind, rows.size(0), by_output);
        const Expected expected = on_one_device(rows, weights, by_output);
        if (expected.weight == 0) continue;
        const auto [loss, gradient] =
            run([&](const at::Tensor& w, const at::Tensor& mine,
                    const auto& own) { return average_loss(losses(w, mine, by_output), own); },
                rows, weights, split);
        EXPECT_NEAR(loss, expected.loss, 1e-12 * std::max(1.0, std::abs(expected.loss)));
        EXPECT_TRUE(near(gradient, expected.gradient)) << static_cast<int>(kind);
      }
    }
  }
}

TEST_P(Loss, ATotalThatIsKnownGivesTheSameForAccumulatedBatches) {
  for (int parts = 1; parts <= 4; ++parts) {
    for (const std::vector<int64_t>& split : splits()) {
      if (total(split) == 0) continue;
      const at::Tensor rows = random_tensor({total(split), kInputs}, at::kDouble, 1);
      const auto weights = make_weights(Weights::kReal, rows.size(0), false);
      const Expected expected = on_one_device(rows, weights, false);
      const auto [loss, gradient] = run(
          [&](const at::Tensor& w, const at::Tensor& mine, const auto& own) {
            const double all = global_weight(*own);
            EXPECT_NEAR(all, expected.weight, 1e-12 * expected.weight);
            at::Tensor sum = at::zeros({}, at::kDouble);
            for (int64_t part = 0; part < parts; ++part) {
              const auto slice = [&](const at::Tensor& each) {
                return each.slice(0, part * each.size(0) / parts,
                                  (part + 1) * each.size(0) / parts);
              };
              sum = sum + average_loss_over(losses(w, slice(mine), false), all, slice(*own));
            }
            return sum;
          },
          rows, weights, split);
      EXPECT_NEAR(loss, expected.loss, 1e-12 * std::max(1.0, std::abs(expected.loss)));
      EXPECT_TRUE(near(gradient, expected.gradient)) << parts;
    }
  }
}

TEST_P(Loss, ARegularizationLossCountsOnce) {
  const auto parts = strategy_.run([] {
    const at::Tensor w = tensor({1.0, -2.0, 3.0}).requires_grad_(true);
    const at::Tensor loss = scale_regularization_loss(w.pow(2));
    loss.backward();
    return std::pair(loss.item<double>(), w.grad());
  });
  double loss = 0;
  at::Tensor gradient = at::zeros({3}, at::kDouble);
  for (const auto& [part, part_gradient] : parts) {
    loss += part;
    gradient += part_gradient;
  }
  EXPECT_NEAR(loss, 14.0, 1e-12);
  EXPECT_TRUE(near(gradient, tensor({2.0, -4.0, 6.0})));
}

TEST_P(Loss, WithoutAnyWeightLossAndGradientAreZero) {
  const double infinity = std::numeric_limits<double>::infinity();
  strategy_.run([&] {
    const at::Tensor x = tensor({1.0, infinity}).requires_grad_(true);
    const at::Tensor loss = average_loss(x * 1, tensor({0.0, 0.0}));
    loss.backward();
    EXPECT_EQ(loss.item<double>(), 0);
    EXPECT_TRUE(test::bit_equal(x.grad(), tensor({0.0, 0.0})));
    const at::Tensor none = at::zeros({0, 3}, at::kDouble).requires_grad_(true);
    const at::Tensor empty = average_loss(none * 2);
    empty.backward();
    EXPECT_EQ(empty.item<double>(), 0);
    EXPECT_EQ(none.grad().numel(), 0);
    const at::Tensor y = scalar(3.0).requires_grad_(true);
    average_loss_over(y, 0, scalar(0.0)).backward();
    EXPECT_EQ(y.grad().item<double>(), 0);
  });
}

TEST_P(Loss, WeightsAreConstants) {
  strategy_.run([] {
    const at::Tensor weights = tensor({1.0, 2.0}).requires_grad_(true);
    const at::Tensor x = tensor({1.0, 5.0}).requires_grad_(true);
    average_loss(x * 1, weights).backward();
    EXPECT_FALSE(weights.grad().defined());
    EXPECT_TRUE(x.grad().defined());
  });
}

TEST_P(Loss, AnAverageOfAReplicaIsRefusedAmongSeveral) {
  if (n() == 1) {
    strategy_.run([] { EXPECT_EQ(average_loss(scalar(3.0)).item<double>(), 3.0); });
    return;
  }
  EXPECT_TUTTI_ERROR(strategy_.run([] { average_loss(at::rand({5}).mean()); }), kInvalid,
                     "average_loss", "no dimensions", std::to_string(n()) + " replicas",
                     "torch::kNone");
  EXPECT_TUTTI_ERROR(strategy_.run([] { average_loss(at::rand({5}).mean(), at::ones({1})); }),
                     kInvalid, "no dimensions");
  // A sum of rows, and their number.
  const auto parts = strategy_.run([] {
    const double rows = my_id();
    return average_loss(scalar(10.0 * rows), scalar(rows)).item<double>();
  });
  double loss = 0;
  double expected = 0;
  for (int i = 0; i < n(); ++i) {
    loss += parts[static_cast<size_t>(i)];
    expected += 10.0 * i * i / (n() * (n() - 1) / 2.0);
  }
  EXPECT_NEAR(loss, expected, 1e-12);
}

TEST_P(Loss, BadWeightsAreErrorsThatNameTheReplica) {
  const int last = n() - 1;
  const auto with = [&](double weight) {
    strategy_.run([&] {
      average_loss(at::ones({3}), tensor({1.0, my_id() == last ? weight : 0.5, 1.0}));
    });
  };
  const std::string who = "replica " + std::to_string(last);
  EXPECT_TUTTI_ERROR(with(-0.25), kInvalid, "average_loss", who, "negative weight -0.25");
  EXPECT_TUTTI_ERROR(with(std::nan("")), kInvalid, who, "nan");
  EXPECT_TUTTI_ERROR(with(std::numeric_limits<double>::infinity()), kInvalid, who, "inf");
  EXPECT_TUTTI_ERROR(strategy_.run([] { global_weight(-1); }), kInvalid, "global_weight", "-1");
  if (n() == 1) return;
  const double huge = std::numeric_limits<double>::max();
  EXPECT_TUTTI_ERROR(strategy_.run([&] { global_weight(huge); }), kInvalid, "all replicas", "inf");
}

TEST_P(Loss, GlobalWeightsAreAdded) {
  strategy_.run([&] {
    EXPECT_EQ(global_weight(my_id() + 1), n() * (n() + 1) / 2);
    EXPECT_EQ(global_weight(at::ones({my_id(), 2}, at::kBool)), n() * (n() - 1));
    // More than float32 can count.
    EXPECT_EQ(global_weight(tensor<int64_t>({(int64_t{1} << 24) + 1, 0})), n() * 16777217.0);
  });
}

TEST_P(Loss, TheAverageOfTensorFlowCountsRowsTimesReplicas) {
  strategy_.run([&] {
    const at::Tensor each = tensor({1.0, 2.0, 6.0});
    EXPECT_NEAR(compute_average_loss(each).item<double>(), 9.0 / (3 * n()), 1e-15);
    EXPECT_NEAR(compute_average_loss(each, tensor({1.0, 0.5, 2.0})).item<double>(),
                14.0 / (3 * n()), 1e-14);
    EXPECT_NEAR(compute_average_loss(each, std::nullopt, 10).item<double>(), 0.9, 1e-15);
    const at::Tensor table = at::ones({2, 4}, at::kDouble);
    EXPECT_NEAR(compute_average_loss(table, tensor({1.0, 3.0})).item<double>(), 16.0 / (2 * n()),
                1e-14);
    EXPECT_EQ(compute_average_loss(at::zeros({0})).item<float>(), 0.F);
  });
}

TEST(LossShapes, BadArgumentsAreErrors) {
  EXPECT_TUTTI_ERROR(average_loss(at::ones({4, 3}), at::ones({4})), kInvalid, "float32[4]",
                     "float32[4, 3]", "broadcast", "unsqueeze(-1)");
  EXPECT_TUTTI_ERROR(average_loss(at::ones({4}), at::ones({4, 4})), kInvalid, "broadcast");
  EXPECT_TUTTI_ERROR(average_loss(at::ones({4}, at::kLong)), kInvalid, "int64[4]",
                     "floating-point");
  EXPECT_TUTTI_ERROR(average_loss(at::Tensor()), kInvalid, "average_loss: the loss is");
  EXPECT_TUTTI_ERROR(average_loss(at::ones({4}), at::Tensor()), kInvalid, "the weights are");
  EXPECT_TUTTI_ERROR(average_loss(at::ones({4}), at::ones({4}, at::kComplexFloat)), kInvalid,
                     "the weights are");
  EXPECT_TUTTI_ERROR(average_loss_over(at::ones({4}), -1), kInvalid, "total weight is -1");
  EXPECT_TUTTI_ERROR(average_loss_over(at::ones({4}), std::nan("")), kInvalid, "nan");
  EXPECT_TUTTI_ERROR(compute_average_loss(scalar(1.F)), kInvalid, "no dimensions");
  EXPECT_TUTTI_ERROR(compute_average_loss(at::ones({4}), std::nullopt, -2), kInvalid, "-2");
  EXPECT_TUTTI_ERROR(scale_regularization_loss(at::Tensor()), kInvalid,
                     "scale_regularization_loss");
  EXPECT_TUTTI_ERROR(global_weight(at::Tensor()), kInvalid, "global_weight");
}

TEST(LossShapes, CrossReplicaContextIsAnError) {
  const MirroredStrategy strategy(test::cpus(2));
  const Scope scope = strategy.scope();
  EXPECT_TUTTI_ERROR(average_loss(at::ones({2})), kPrecondition, "average_loss", "Strategy::run");
  EXPECT_TUTTI_ERROR(average_loss_over(at::ones({2}), 2), kPrecondition, "average_loss_over");
  EXPECT_TUTTI_ERROR(global_weight(1), kPrecondition, "global_weight");
  EXPECT_TUTTI_ERROR(scale_regularization_loss(at::ones({2})), kPrecondition, "cross-replica");
  EXPECT_TUTTI_ERROR(compute_average_loss(at::ones({2})), kPrecondition, "cross-replica");
}

TEST(LossShapes, OutsideOfAStrategyItIsThePlainMean) {
  EXPECT_EQ(average_loss(tensor({1.0, 2.0, 6.0})).item<double>(), 3.0);
  EXPECT_EQ(average_loss(tensor({1.0, 2.0, 6.0}), tensor({1, 0, 3})).item<double>(), 4.75);
  EXPECT_EQ(scale_regularization_loss(tensor({1.0, 2.0})).item<double>(), 3.0);
}

TEST(LossShapes, SmallTypesAreSummedInFloat32) {
  const at::Tensor loss = average_loss(at::full({1000}, 300, at::kHalf));
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(loss.item<float>(), 300.F);
  EXPECT_EQ(average_loss(at::ones({2}, at::kFloat)).scalar_type(), at::kFloat);
}

TEST(LossShapes, GradientsOfGradientsGoThroughTheAverage) {
  // Few elements take a shorter path than many.
  for (const int64_t rows : {3, 5000}) {
    const at::Tensor x = at::linspace(-1, 1, rows, at::kDouble).requires_grad_();
    const at::Tensor plain = at::linspace(-1, 1, rows, at::kDouble).requires_grad_();
    const auto second = [](const at::Tensor& at, const at::Tensor& loss) {
      const at::Tensor first = torch::autograd::grad({loss}, {at}, {}, true, true)[0];
      return torch::autograd::grad({first.square().sum()}, {at})[0];
    };
    const at::Tensor got = second(x, average_loss(x.pow(3)));
    const at::Tensor want = second(plain, plain.pow(3).mean());
    EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-15)) << rows;
  }
}

// ---- losses that are consumed
// --------------------------------------------------------------------

at::Tensor losses_of(const at::Tensor& scores) {
  const at::Tensor classes = at::arange(scores.size(0)).remainder(scores.size(1));
  return at::cross_entropy_loss(scores, classes, {}, at::Reduction::None);
}

at::Tensor some_scores() { return test::random_tensor({5, 3}, at::kDouble, 1).requires_grad_(); }

// The gradient of the plain mean.
at::Tensor mean_gradient() {
  const at::Tensor scores = some_scores();
  losses_of(scores).mean().backward();
  return scores.grad();
}

TEST(LossesThatAreHandedOver, SaveBackwardANode) {
  const at::Tensor scores = some_scores();
  const at::Tensor average = average_loss(losses_of(scores));
  EXPECT_EQ(average.grad_fn()->name(), "AverageLossBackward of NllLossBackward0");
  average.backward();
  EXPECT_TRUE(at::allclose(scores.grad(), mean_gradient(), 1e-12, 1e-15));
}

TEST(LossesThatAreHandedOver, AreFreedByBackwardLikeAnyGraph) {
  const at::Tensor scores = some_scores();
  const at::Tensor average = average_loss(losses_of(scores));
  average.backward({}, /*retain_graph=*/true);
  average.backward();
  EXPECT_TRUE(at::allclose(scores.grad(), 2 * mean_gradient(), 1e-12, 1e-15));
  EXPECT_THROW(average.backward(), c10::Error) << "a third time";
}

TEST(LossesThatAreKept, CanBeAskedForTheirGradientAndHaveHooks) {
  const at::Tensor scores = some_scores();
  const at::Tensor losses = losses_of(scores);
  const at::Tensor average = average_loss(losses);
  EXPECT_EQ(average.grad_fn()->name(), "AverageLossBackward");
  const at::Tensor of_losses = torch::autograd::grad({average}, {losses}, {}, true)[0];
  EXPECT_TRUE(at::equal(of_losses, at::full({5}, 0.2, at::kDouble)));
  int calls = 0;
  losses.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 3;
  });
  losses.retain_grad();
  average.backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(losses.grad().defined());
  EXPECT_TRUE(at::allclose(scores.grad(), 3 * mean_gradient(), 1e-12, 1e-15));
}

TEST(LossesThatAreKept, AreThoseThatAnotherLossUsesToo) {
  const at::Tensor scores = some_scores();
  at::Tensor losses = losses_of(scores);
  const at::Tensor twice = losses.mul(2).mean();
  (average_loss(std::move(losses)) + twice).backward();
  EXPECT_TRUE(at::allclose(scores.grad(), 3 * mean_gradient(), 1e-12, 1e-15));
}

TEST(LossesThatAreKept, AreThoseWithHooks) {
  const at::Tensor scores = some_scores();
  at::Tensor losses = losses_of(scores);
  losses.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
  average_loss(std::move(losses)).backward();
  EXPECT_TRUE(at::allclose(scores.grad(), 3 * mean_gradient(), 1e-12, 1e-15));
}

TEST(LossesThatAreKept, MayBeOneOfSeveralOutputs) {
  const at::Tensor both = test::random_tensor({2, 4}, at::kDouble, 1).requires_grad_();
  const std::vector<at::Tensor> parts = both.unbind(0);
  average_loss(parts[1]).backward();
  EXPECT_TRUE(at::equal(
      both.grad(), at::cat({at::zeros({1, 4}, at::kDouble), at::full({1, 4}, 0.25, at::kDouble)})));
}

// The node of exp() saves its result, and so is in the graph of its gradient too.
TEST(LossesThatAreHandedOver, HaveGradientsOfGradientsInTheSameBackward) {
  const auto gradient = [](auto average) {
    const at::Tensor w = at::linspace(-1, 1, 5, at::kDouble).requires_grad_();
    const at::Tensor loss = average((w * 2).exp());
    const at::Tensor first = torch::autograd::grad({loss}, {w}, {}, true, true)[0];
    (loss + first.square().sum()).backward();
    return w.grad();
  };
  const at::Tensor got =
      gradient([](at::Tensor losses) { return average_loss(std::move(losses)); });
  const at::Tensor want = gradient([](const at::Tensor& losses) { return losses.mean(); });
  EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-15));
}

}  // namespace tutti::loss_test
