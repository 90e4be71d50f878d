// SPDX-License-Identifier: Apache-2.0
//
// Metrics of replicas against plain loops over all rows.

#include "tutti/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/strategy/one_device_strategy.h"

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"
#include "tests/train/train_strategies.h"

namespace tutti::metrics_test {

using test::my_id;
using test::ragged_splits;
using test::random_tensor;
using test::scalar;
using test::split_rows;
using test::tensor;

using MaybeWeights = std::optional<at::Tensor>;

constexpr auto kInvalid = ErrorCode::kInvalidArgument;
constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;
constexpr int64_t kClasses = 7;

int64_t total(const std::vector<int64_t>& split) {
  return std::accumulate(split.begin(), split.end(), int64_t{0});
}

// Scores with ties, labels of all classes, and weights of several kinds for the rows.
struct Data {
  explicit Data(int64_t rows, uint64_t seed)
      : scores((random_tensor({rows, kClasses}, at::kFloat, seed) * 20).round()),
        labels(random_tensor({rows}, at::kLong, seed + 1).remainder(kClasses)),
        probabilities(random_tensor({rows}, at::kDouble, seed + 2).abs().clamp(0, 1)),
        truth(random_tensor({rows}, at::kDouble, seed + 3) > -0.1),
        weights((random_tensor({rows}, at::kDouble, seed + 4).abs() * 8).round()) {}

  at::Tensor scores, labels, probabilities, truth, weights;

  double weight(int64_t row, bool weighted) const {
    return weighted ? weights.data_ptr<double>()[row] : 1;
  }
  int64_t rows() const { return labels.size(0); }
};

// sum(weight * value) and sum(weight), for a value of each row.
std::pair<double, double> sums(const Data& data, bool weighted,
                               const std::function<double(int64_t)>& value) {
  double sum = 0;
  double weight = 0;
  for (int64_t i = 0; i < data.rows(); ++i) {
    sum += data.weight(i, weighted) * value(i);
    weight += data.weight(i, weighted);
  }
  return {sum, weight};
}

double mean(const Data& data, bool weighted, const std::function<double(int64_t)>& value) {
  const auto [sum, weight] = sums(data, weighted, value);
  return weight == 0 ? 0 : sum / weight;
}

// Counts the classes that rank before the label: greater ones and, with `ties`, equal ones with a
// smaller index.
int64_t rank(const Data& data, int64_t row, bool ties) {
  const float* const score = data.scores.data_ptr<float>() + row * kClasses;
  const int64_t label = data.labels.data_ptr<int64_t>()[row];
  int64_t before = 0;
  for (int64_t c = 0; c < kClasses; ++c) {
    before += score[c] > score[label] || (ties && score[c] == score[label] && c < label) ? 1 : 0;
  }
  return before;
}

class Metrics : public testing::TestWithParam<test::TrainCase> {
 protected:
  int n() const { return GetParam().replicas; }

  // Two steps over uneven replicas, each with data of its own; then the result on all rows.
  void check(const metrics::Metric& metric,
             const std::function<void(const Data&, const MaybeWeights&)>& update,
             const std::function<double(const Data&, bool)>& expected) const {
    for (const std::vector<int64_t>& split : ragged_splits(n())) {
      for (const bool weighted : {false, true}) {
        metric.reset();
        EXPECT_EQ(metric.result(), 0);
        const Data all(2 * total(split), 5);
        for (const int64_t step : {0, 1}) {
          step_over(all, step, split, weighted, update);
        }
        const double wanted = expected(all, weighted);
        EXPECT_NEAR(metric.result(), wanted, 1e-12 * std::max(1.0, std::abs(wanted)));
        const double outside = metric.result();
        strategy_.run([&] { EXPECT_EQ(metric.result(), outside); });
      }
    }
  }

  const Strategy strategy_ = GetParam().make();

 private:
  void step_over(const Data& all, int64_t step, const std::vector<int64_t>& split, bool weighted,
                 const std::function<void(const Data&, const MaybeWeights&)>& update) const {
    const int64_t rows = total(split);
    const auto part = [&](const at::Tensor& each) {
      return split_rows(each.slice(0, step * rows, (step + 1) * rows), split);
    };
    strategy_.run(
        [&](const at::Tensor& scores, const at::Tensor& labels, const at::Tensor& probabilities,
            const at::Tensor& truth, const at::Tensor& weights) {
          Data mine(0, 1);
          mine.scores = scores;
          mine.labels = labels;
          mine.probabilities = probabilities;
          mine.truth = truth;
          update(mine, weighted ? MaybeWeights(weights) : std::nullopt);
        },
        part(all.scores), part(all.labels), part(all.probabilities), part(all.truth),
        part(all.weights));
  }
};

INSTANTIATE_TEST_SUITE_P(All, Metrics, test::kTrainCases, test::train_case_name);

TEST_P(Metrics, MeanIsThatOfAllRows) {
  const metrics::Mean metric(strategy_, "mean");
  check(
      metric,
      [&](const Data& mine, const MaybeWeights& w) { metric.update(mine.probabilities, w); },
      [](const Data& all, bool weighted) {
        return mean(all, weighted,
                    [&](int64_t i) { return all.probabilities.data_ptr<double>()[i]; });
      });
}

TEST_P(Metrics, SumIsThatOfAllRows) {
  const metrics::Sum metric(strategy_, "sum");
  check(
      metric, [&](const Data& mine, const MaybeWeights& w) { metric.update(mine.labels, w); },
      [](const Data& all, bool weighted) {
        return sums(all, weighted,
                    [&](int64_t i) {
                      return static_cast<double>(all.labels.data_ptr<int64_t>()[i]);
                    })
            .first;
      });
}

TEST_P(Metrics, AccuracyCountsTheFirstOfTheGreatestScores) {
  const metrics::Accuracy metric(strategy_, "accuracy");
  check(
      metric,
      [&](const Data& mine, const MaybeWeights& w) { metric.update(mine.scores, mine.labels, w); },
      [](const Data& all, bool weighted) {
        return mean(all, weighted, [&](int64_t i) { return rank(all, i, true) == 0 ? 1.0 : 0.0; });
      });
}

TEST_P(Metrics, TopKAccuracyCountsGreaterScores) {
  for (const int64_t k : {1, 2, 5, 9}) {
    const metrics::TopKAccuracy metric(strategy_, "top", k);
    check(
        metric,
        [&](const Data& mine, const MaybeWeights& w) {
          metric.update(mine.scores, mine.labels, w);
        },
        [&](const Data& all, bool weighted) {
          return mean(all, weighted,
                      [&](int64_t i) { return rank(all, i, false) < k ? 1.0 : 0.0; });
        });
  }
}

TEST_P(Metrics, BinaryAccuracyComparesWithItsThreshold) {
  for (const double threshold : {0.5, 0.2}) {
    const metrics::BinaryAccuracy metric(strategy_, "binary", threshold);
    check(
        metric,
        [&](const Data& mine, const MaybeWeights& w) {
          metric.update(mine.probabilities, mine.truth, w);
        },
        [&](const Data& all, bool weighted) {
          return mean(all, weighted, [&](int64_t i) {
            const bool positive = all.probabilities.data_ptr<double>()[i] > threshold;
            return positive == all.truth.data_ptr<bool>()[i] ? 1.0 : 0.0;
          });
        });
  }
}

TEST_P(Metrics, MeanSquaredErrorIsThatOfAllRows) {
  const metrics::MeanSquaredError metric(strategy_, "mse");
  check(
      metric,
      [&](const Data& mine, const MaybeWeights& w) {
        metric.update(mine.probabilities, mine.labels, w);
      },
      [](const Data& all, bool weighted) {
        return mean(all, weighted, [&](int64_t i) {
          return std::pow(all.probabilities.data_ptr<double>()[i] -
                              static_cast<double>(all.labels.data_ptr<int64_t>()[i]),
                          2);
        });
      });
}

// The weights above a threshold: true and false positives.
std::pair<double, double> positives(const Data& data, bool weighted, double threshold) {
  double tp = 0;
  double fp = 0;
  for (int64_t i = 0; i < data.rows(); ++i) {
    if (data.probabilities.data_ptr<double>()[i] <= threshold) continue;
    (data.truth.data_ptr<bool>()[i] ? tp : fp) += data.weight(i, weighted);
  }
  return {tp, fp};
}

// Sums trapezoids between evenly spaced thresholds.
double roc(const Data& data, bool weighted, int64_t thresholds) {
  const auto [all_tp, all_fp] = positives(data, weighted, -1);
  if (all_tp == 0 || all_fp == 0) return 0;
  double area = 0;
  std::pair<double, double> before(all_tp, all_fp);
  for (int64_t t = 1; t < thresholds; ++t) {
    const double threshold =
        t == thresholds - 1 ? 2 : static_cast<double>(t) / static_cast<double>(thresholds - 1);
    const auto now = positives(data, weighted, threshold);
    area += (before.second - now.second) * (before.first + now.first) / 2 / (all_tp * all_fp);
    before = now;
  }
  return area;
}

TEST_P(Metrics, AucIsThatOfAllRows) {
  for (const int64_t thresholds : {2, 3, 200}) {
    const metrics::Auc metric(strategy_, "auc", {.num_thresholds = thresholds});
    check(
        metric,
        [&](const Data& mine, const MaybeWeights& w) {
          metric.update(mine.probabilities, mine.truth, w);
        },
        [&](const Data& all, bool weighted) { return roc(all, weighted, thresholds); });
  }
}

TEST_P(Metrics, CountsAreExactBeyondFloat32) {
  const metrics::Accuracy metric(strategy_, "accuracy");
  const double many = 16777216;  // 2^24; float32 cannot represent the next integer
  strategy_.run([&] { metric.update(at::eye(2), tensor<int64_t>({0, 0}), tensor({many, 1.0})); });
  EXPECT_EQ(metric.result(), n() * many / (n() * (many + 1)));
  const metrics::Sum sum(strategy_, "sum");
  strategy_.run([&] { sum.update(tensor<int64_t>({16777217})); });
  EXPECT_EQ(sum.result(), n() * 16777217.0);
}

TEST_P(Metrics, ReplicasUpdateAsOftenAsTheyLike) {
  const metrics::Mean metric(strategy_, "mean");
  strategy_.run([&] {
    for (int i = 0; i < my_id(); ++i) metric.update(i, 2);
  });
  double sum = 0;
  double count = 0;
  for (int r = 0; r < n(); ++r) {
    for (int i = 0; i < r; ++i) {
      sum += i;
      count += 1;
    }
  }
  EXPECT_NEAR(metric.result(), count == 0 ? 0 : sum / count, 1e-15);
}

TEST_P(Metrics, OutsideOfRunAValueCountsOnce) {
  const metrics::Mean metric(strategy_, "mean");
  const metrics::Sum sum(strategy_, "sum");
  strategy_.run([&] { sum.update(my_id() + 1); });
  metric.update(tensor({1.0, 2.0}));
  sum.update(100);
  strategy_.scope([&] {
    metric.update(6.0);
    sum.update(1000);
    EXPECT_EQ(metric.result(), 3.0);
  });
  strategy_.run(
      [&] { get_replica_context()->merge_call([&](const Strategy&) { sum.update(10'000); }); });
  EXPECT_EQ(metric.result(), 3.0);
  EXPECT_EQ(sum.result(), 11'100 + n() * (n() + 1) / 2);
  metric.reset();
  metric.update(5.0);
  EXPECT_EQ(metric.result(), 5.0);
  strategy_.run([&] { metric.reset(); });
  EXPECT_EQ(metric.result(), 0);
}

TEST_P(Metrics, AreMadeInAScopeOrARunAndCopiesShareNumbers) {
  const metrics::Mean in_scope = strategy_.scope([] { return metrics::Mean("m"); });
  EXPECT_EQ(in_scope.name(), "m");
  const metrics::Mean copy = in_scope;
  strategy_.run([&] { copy.update(2.0); });
  EXPECT_EQ(in_scope.result(), 2.0);
  const auto in_run = strategy_.run([] {
    const metrics::Sum sum("s");
    sum.update(my_id() + 1);
    return sum;
  });
  EXPECT_EQ(in_run[0].result(), n() * (n() + 1) / 2);
}

TEST_P(Metrics, TakeNoPartInGradients) {
  const metrics::MeanSquaredError metric(strategy_, "mse");
  const metrics::Mean average(strategy_, "mean");
  strategy_.run([&] {
    const at::Tensor x = tensor({1.0, 2.0}).requires_grad_(true);
    const at::Tensor loss = (x * x).sum();
    metric.update(x * 2, tensor({0.0, 0.0}));
    average.update(loss);
    loss.backward();
    EXPECT_TRUE(test::bit_equal(x.grad(), tensor({2.0, 4.0})));
  });
  EXPECT_EQ(metric.result(), 10.0);
  EXPECT_EQ(average.result(), 5.0);
}

TEST_P(Metrics, RefuseToBeUsedInAnotherStrategy) {
  const metrics::Mean metric(strategy_, "mean");
  const MirroredStrategy other(test::cpus(2));
  EXPECT_TUTTI_ERROR(other.run([&] { metric.update(1.0); }), kPrecondition,
                     "mixing different strategies", "'mean'");
  EXPECT_TUTTI_ERROR(other.scope([&] { metric.update(1.0); }), kPrecondition,
                     "mixing different strategies");
  EXPECT_TUTTI_ERROR(other.scope([&] { return metric.result(); }), kPrecondition,
                     "mixing different strategies");
  EXPECT_EQ(metric.result(), 0);
}

TEST(MetricRules, WorkWithoutAStrategyAndOnOneDevice) {
  const metrics::Mean plain("mean");
  plain.update(tensor({1.0, 2.0}));
  plain.update(tensor({6.0}));
  EXPECT_EQ(plain.result(), 3.0);
  const OneDeviceStrategy one("CPU:0");
  const metrics::Mean of_one(one, "mean");
  of_one.update(1.0);
  one.run([&] { of_one.update(2.0); });
  EXPECT_EQ(of_one.result(), 1.5);
  const MirroredStrategy two(test::cpus(2));
  EXPECT_TUTTI_ERROR(two.run([&] { plain.update(1.0); }), kPrecondition, "outside of a scope");
}

TEST(MetricRules, IgnoreTheValuesOfRowsThatDoNotCount) {
  const double nan = std::nan("");
  const metrics::Mean mean("mean");
  mean.update(tensor({1.0, nan, std::numeric_limits<double>::infinity()}), tensor({2, 0, 0}));
  EXPECT_EQ(mean.result(), 1.0);
  mean.update(nan);
  EXPECT_TRUE(std::isnan(mean.result()));
}

TEST(MetricRules, ValuesOfAnyShapeAndTypeCountByElement) {
  const metrics::Mean mean("mean");
  mean.update(tensor<int64_t>({1, 2, 3, 6}).reshape({2, 2}), tensor({1.F, 3.F}).reshape({2, 1}));
  EXPECT_EQ(mean.result(), (1 + 2 + 3 * (3 + 6)) / 8.0);
  mean.reset();
  mean.update(tensor({true, false, true, true}));
  EXPECT_EQ(mean.result(), 0.75);
  mean.reset();
  mean.update(at::full({4096}, 100, at::kHalf));
  EXPECT_EQ(mean.result(), 100);
  const metrics::Accuracy accuracy("accuracy");
  accuracy.update(at::eye(3).repeat({2, 1, 1}),
                  tensor<int64_t>({0, 1, 2, 0, 0, 0}).reshape({2, 3}));
  EXPECT_EQ(accuracy.result(), 4.0 / 6);
}

TEST(MetricRules, ALabelThatIsNoClassIsNeverMet) {
  const metrics::Accuracy accuracy("accuracy");
  const metrics::TopKAccuracy top("top", 3);
  const at::Tensor labels = tensor<int64_t>({0, -1, 3});
  accuracy.update(at::eye(3), labels);
  top.update(at::eye(3), labels);
  EXPECT_EQ(accuracy.result(), 1.0 / 3);
  EXPECT_EQ(top.result(), 1.0 / 3);
  const metrics::TopKAccuracy broken("top", 3);
  broken.update(at::full({1, 3}, std::nan("")), tensor<int64_t>({1}));
  EXPECT_EQ(broken.result(), 0);
}

// The example in the documentation of tf.keras.metrics.AUC.
TEST(MetricRules, AucOfTheDocumentedExample) {
  const metrics::Auc auc("auc", {.num_thresholds = 3});
  auc.update(tensor({0.F, 0.5F, 0.3F, 0.9F}), tensor({0, 0, 1, 1}));
  EXPECT_EQ(auc.result(), 0.75);
  auc.reset();
  auc.update(tensor({0.F, 0.5F, 0.3F, 0.9F}), tensor({0, 0, 1, 1}), tensor({1, 0, 0, 1}));
  EXPECT_EQ(auc.result(), 1.0);
  const metrics::Auc own("auc", {.thresholds = {0.5}});
  own.update(tensor({0.F, 0.5F, 0.3F, 0.9F}), tensor({0, 0, 1, 1}));
  EXPECT_EQ(own.result(), 0.75);
  const metrics::Auc logits("auc", {.num_thresholds = 3, .from_logits = true});
  logits.update(tensor({-50.F, 0.F, -1.F, 3.F}), tensor({0, 0, 1, 1}));
  EXPECT_EQ(logits.result(), 0.75);
}

// Between two thresholds true positives grow in proportion to all positives: the area is summed
// in small steps.
TEST(MetricRules, AucOfPrecisionAndRecallIsItsIntegral) {
  const Data data(60, 77);
  const std::vector<double> thresholds = {0.1, 0.15, 0.3, 0.6};
  const metrics::Auc auc("auc",
                         {.curve = metrics::AucOptions::Curve::kPr, .thresholds = thresholds});
  auc.update(data.probabilities, data.truth, data.weights);
  std::vector<double> all = thresholds;
  all.insert(all.begin(), -1);
  all.push_back(2);
  const double total_positive = positives(data, true, -1).first;
  double area = 0;
  for (size_t t = 0; t + 1 < all.size(); ++t) {
    const auto [tp1, fp1] = positives(data, true, all[t]);
    const auto [tp0, fp0] = positives(data, true, all[t + 1]);
    const int steps = 200'000;
    for (int s = 0; s < steps; ++s) {
      const double part = (s + 0.5) / steps;
      const double tp = tp0 + part * (tp1 - tp0);
      const double fp = fp0 + part * (fp1 - fp0);
      if (tp + fp > 0) area += tp / (tp + fp) * (tp1 - tp0) / steps / total_positive;
    }
  }
  EXPECT_NEAR(auc.result(), area, 1e-9);
  EXPECT_GT(auc.result(), 0.1);
}

TEST(MetricRules, BadValuesAreErrors) {
  const metrics::Mean mean("loss");
  EXPECT_TUTTI_ERROR(mean.update(at::Tensor()), kInvalid, "metrics::Mean 'loss'", "undefined");
  EXPECT_TUTTI_ERROR(mean.update(at::ones({2}, at::kComplexFloat)), kInvalid, "real numbers");
  EXPECT_TUTTI_ERROR(mean.update(at::ones({4, 3}), at::ones({4})), kInvalid, "float32[4]",
                     "float32[4, 3]", "unsqueeze(-1)");
  EXPECT_TUTTI_ERROR(mean.update(at::ones({4}), at::ones({4, 4})), kInvalid, "broadcast");
  const metrics::MeanSquaredError error("mse");
  EXPECT_TUTTI_ERROR(error.update(at::ones({4, 1}), at::ones({4})), kInvalid,
                     "metrics::MeanSquaredError 'mse'", "float32[4, 1]", "float32[4]",
                     "shapes must be equal");
  const metrics::BinaryAccuracy binary("b");
  EXPECT_TUTTI_ERROR(binary.update(at::ones({4}), at::ones({3})), kInvalid, "the labels");
  EXPECT_EQ(mean.result() + error.result() + binary.result(), 0);
}

TEST(MetricRules, BadClassesAreErrors) {
  const metrics::Accuracy accuracy("a");
  const metrics::TopKAccuracy top("t");
  const auto check = [](const auto& metric) {
    EXPECT_TUTTI_ERROR(metric.update(at::ones({4, 3}), at::ones({4})), kInvalid, "float32[4]",
                       "integers", "argmax(-1)");
    EXPECT_TUTTI_ERROR(metric.update(at::ones({4, 3}), at::ones({4, 1}, at::kLong)), kInvalid,
                       "float32[4, 3]", "int64[4, 1]", "[..., classes]");
    EXPECT_TUTTI_ERROR(metric.update(scalar(1.F), scalar<int64_t>(1)), kInvalid, "classes");
    EXPECT_TUTTI_ERROR(metric.update(at::ones({4, 0}), at::ones({4}, at::kLong)), kInvalid,
                       "classes");
    EXPECT_TUTTI_ERROR(metric.update(at::ones({4, 3}), at::ones({4}, at::kLong), at::ones({3})),
                       kInvalid, "the weights");
  };
  check(accuracy);
  check(top);
  EXPECT_TUTTI_ERROR(metrics::TopKAccuracy("t", 0), kInvalid, "metrics::TopKAccuracy 't'",
                     "k is 0");
}

TEST(MetricRules, BadProbabilitiesAndThresholdsAreErrors) {
  const metrics::Auc auc("auc");
  EXPECT_TUTTI_ERROR(auc.update(tensor({0.5, 1.5}), tensor({0, 1})), kInvalid, "metrics::Auc 'auc'",
                     "0.5 to 1.5", "sigmoid");
  EXPECT_TUTTI_ERROR(auc.update(tensor({-0.1}), tensor({0})), kInvalid, "-0.1");
  EXPECT_TUTTI_ERROR(auc.update(tensor({std::nan("")}), tensor({0})), kInvalid, "[0, 1]");
  EXPECT_TUTTI_ERROR(auc.update(tensor({0.5}), tensor({0, 1})), kInvalid, "shapes must be equal");
  EXPECT_TUTTI_ERROR(metrics::Auc("auc", {.num_thresholds = 1}), kInvalid, "num_thresholds is 1");
  EXPECT_TUTTI_ERROR(metrics::Auc("auc", {.thresholds = {0.5, 1.5}}), kInvalid,
                     "thresholds is 1.5");
  EXPECT_EQ(auc.result(), 0);
}

}  // namespace tutti::metrics_test
