// SPDX-License-Identifier: Apache-2.0
//
// Metrics that are exact over all replicas, however unevenly the rows are split: each
// replica adds to its own numbers in float64, and result() sums those of all replicas.
//
//   metrics::Mean loss(strategy, "loss");
//   strategy.run([&](const Batch& batch) { loss.update(per_example_loss(batch)); }, step);
//   std::cout << loss.result();

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/variable.h"

namespace tutti::metrics {

/// The base of all metrics: a handle on a variable that synchronises on read. It is cheap to
/// copy, and copies share the numbers. Replicas may use it concurrently; other threads need a
/// lock. It belongs to the given strategy or, without one, to the current one, as a Variable
/// does; using it in another strategy's scope or run throws kFailedPrecondition.
///
/// update() inside Strategy::run adds to this replica's numbers: it is not a meeting point, and
/// replicas may call it a different number of times. Outside of run() values count once.
/// Nothing is recorded for gradients. `weights` are numbers or booleans that broadcast to the
/// examples; an example of weight 0 does not count. Counts are exact up to 2^53. Values of
/// the wrong type or shape are kInvalidArgument.
class Metric {
 public:
  virtual ~Metric() = default;

  const std::string& name() const { return name_; }

  /// The value over all replicas and updates since the last reset(); 0 if nothing has weight. It
  /// costs one reduction. Inside run() it is a meeting point: every replica must call it.
  double result(CallSite site = CallSite::current()) const;

  /// Sets the numbers to zero. Inside run() it resets this replica's numbers only: every replica
  /// must call it.
  void reset() const;

 protected:
  Metric(const std::string& name, at::IntArrayRef shape);
  Metric(const Strategy& strategy, const std::string& name, at::IntArrayRef shape);
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;

  /// Adds float64 numbers in the metric's shape.
  void add(const at::Tensor& numbers) const;

  std::string who() const;  ///< "metrics::Mean 'loss'", for errors

 private:
  virtual const char* kind() const = 0;  // "Mean"
  virtual double compute(const at::Tensor& totals) const = 0;

  std::string name_;
  Variable totals_;
};

/// The base of averages: a weighted sum and the sum of the weights. Threads: as Metric.
class WeightedMean : public Metric {
 public:
  explicit WeightedMean(const std::string& name) : Metric(name, {2}) {}
  WeightedMean(const Strategy& strategy, const std::string& name) : Metric(strategy, name, {2}) {}

 protected:
  void add_examples(const at::Tensor& values, const std::optional<at::Tensor>& weights) const;

 private:
  double compute(const at::Tensor& totals) const override;
};

/// The mean of all elements. Threads: as Metric.
class Mean final : public WeightedMean {
 public:
  using WeightedMean::WeightedMean;

  /// Takes real numbers or booleans of any shape.
  void update(const at::Tensor& values,
              const std::optional<at::Tensor>& weights = std::nullopt) const;
  void update(double value, double weight = 1) const;

 private:
  const char* kind() const override { return "Mean"; }
};

/// The sum of all elements. Threads: as Metric.
class Sum final : public Metric {
 public:
  explicit Sum(const std::string& name) : Metric(name, {1}) {}
  Sum(const Strategy& strategy, const std::string& name) : Metric(strategy, name, {1}) {}

  /// Takes real numbers or booleans of any shape.
  void update(const at::Tensor& values,
              const std::optional<at::Tensor>& weights = std::nullopt) const;
  void update(double value) const;

 private:
  const char* kind() const override { return "Sum"; }
  double compute(const at::Tensor& totals) const override;
};

/// How often the class with the greatest score is the label; of equal scores the first wins.
/// Threads: as Metric.
class Accuracy final : public WeightedMean {
 public:
  using WeightedMean::WeightedMean;

  /// `scores` are logits or probabilities [..., classes], `labels` integers [...]. A label
  /// that is not a class never matches.
  void update(const at::Tensor& scores, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "Accuracy"; }
};

/// How often "the score is above the threshold" agrees with "the label is not 0". Threads: as
/// Metric.
class BinaryAccuracy final : public WeightedMean {
 public:
  explicit BinaryAccuracy(const std::string& name, double threshold = 0.5)
      : WeightedMean(name), threshold_(threshold) {}
  BinaryAccuracy(const Strategy& strategy, const std::string& name, double threshold = 0.5)
      : WeightedMean(strategy, name), threshold_(threshold) {}

  /// Shapes must be equal.
  void update(const at::Tensor& scores, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "BinaryAccuracy"; }

  double threshold_;
};

/// How often fewer than k classes have a greater score than the label's, which must be finite.
/// Threads: as Metric.
class TopKAccuracy final : public WeightedMean {
 public:
  /// Throws kInvalidArgument unless k is positive.
  explicit TopKAccuracy(const std::string& name, int64_t k = 5);
  TopKAccuracy(const Strategy& strategy, const std::string& name, int64_t k = 5);

  /// See Accuracy::update.
  void update(const at::Tensor& scores, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "TopKAccuracy"; }

  int64_t k_;
};

/// The mean of (prediction - target)^2 over all elements. Threads: as Metric.
class MeanSquaredError final : public WeightedMean {
 public:
  using WeightedMean::WeightedMean;

  /// Shapes must be equal.
  void update(const at::Tensor& predictions, const at::Tensor& targets,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "MeanSquaredError"; }
};

struct AucOptions {
  enum class Curve {
    kRoc,  ///< True positives over false positives, by trapezoids.
    kPr,   ///< Precision over recall; true positives are interpolated between thresholds.
  };

  /// Evenly spaced from 0 to 1; at least 2.
  int64_t num_thresholds = 200;
  Curve curve = Curve::kRoc;

  /// Used instead of num_thresholds: the inner thresholds, each in [0, 1].
  std::vector<double> thresholds = {};

  /// Whether predictions are logits.
  bool from_logits = false;
};

/// The area under a curve, approximated by thresholds as tf.keras.metrics.AUC does. Unless there
/// are examples of both kinds it is 0. Threads: as Metric.
class Auc final : public Metric {
 public:
  /// Throws kInvalidArgument for bad options.
  explicit Auc(const std::string& name, const AucOptions& options = {});
  Auc(const Strategy& strategy, const std::string& name, const AucOptions& options = {});

  /// Shapes must be equal. Predictions lie in [0, 1] unless they are logits; labels other than 0
  /// are positive.
  void update(const at::Tensor& predictions, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "Auc"; }
  double compute(const at::Tensor& totals) const override;

  AucOptions options_;
  at::Tensor thresholds_;  // ascending, float64; never written
};

}  // namespace tutti::metrics
