// SPDX-License-Identifier: Apache-2.0
//
// Metrics that are exact over all replicas, however unevenly the rows lie on them: each
// replica adds to numbers of its own in float64, and result() adds up those of all.
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

/// What all metrics have. A handle on a variable that synchronises on read: cheap to copy,
/// copies share the numbers. Each replica may use it at the same time as the others; on
/// other threads it needs a lock. It belongs to the strategy given, or without one to the
/// current one, as a Variable does; in another strategy's scope or run it is
/// kFailedPrecondition.
///
/// update() inside Strategy::run adds to this replica's numbers: no meeting point, and
/// replicas may call it differently often. Outside of run() values count once. Nothing is
/// recorded for gradients. `weights` are numbers or truth values that broadcast to the
/// examples; an example of weight 0 does not count. Counts are exact up to 2^53. Values of
/// the wrong type or shape are kInvalidArgument.
class Metric {
 public:
  virtual ~Metric() = default;

  const std::string& name() const { return name_; }

  /// Over all replicas and updates since the last reset(); 0 if nothing has weight. One
  /// reduction. Inside run() it is a meeting point: every replica must ask.
  double result(CallSite site = CallSite::current()) const;

  /// Begins again. Inside run() it is for this replica's numbers only: every replica must
  /// do it.
  void reset() const;

 protected:
  Metric(const std::string& name, at::IntArrayRef shape);
  Metric(const Strategy& strategy, const std::string& name, at::IntArrayRef shape);
  Metric(const Metric&) = default;
  Metric& operator=(const Metric&) = default;

  /// Adds float64 numbers of the metric's shape.
  void add(const at::Tensor& numbers) const;

  std::string who() const;  ///< "metrics::Mean 'loss'", for errors

 private:
  virtual const char* kind() const = 0;  // "Mean"
  virtual double compute(const at::Tensor& totals) const = 0;

  std::string name_;
  Variable totals_;
};

/// The base of averages: a weighted sum and the sum of the weights.
class WeightedMean : public Metric {
 public:
  explicit WeightedMean(const std::string& name) : Metric(name, {2}) {}
  WeightedMean(const Strategy& strategy, const std::string& name) : Metric(strategy, name, {2}) {}

 protected:
  void add_examples(const at::Tensor& values, const std::optional<at::Tensor>& weights) const;

 private:
  double compute(const at::Tensor& totals) const override;
};

/// The mean of all elements.
class Mean final : public WeightedMean {
 public:
  using WeightedMean::WeightedMean;

  /// Real numbers or truth values of any shape.
  void update(const at::Tensor& values,
              const std::optional<at::Tensor>& weights = std::nullopt) const;
  void update(double value, double weight = 1) const;

 private:
  const char* kind() const override { return "Mean"; }
};

/// The sum of all elements.
class Sum final : public Metric {
 public:
  explicit Sum(const std::string& name) : Metric(name, {1}) {}
  Sum(const Strategy& strategy, const std::string& name) : Metric(strategy, name, {1}) {}

  /// Real numbers or truth values of any shape.
  void update(const at::Tensor& values,
              const std::optional<at::Tensor>& weights = std::nullopt) const;
  void update(double value) const;

 private:
  const char* kind() const override { return "Sum"; }
  double compute(const at::Tensor& totals) const override;
};

/// How often the class with the greatest score is the label; of equal scores the first.
class Accuracy final : public WeightedMean {
 public:
  using WeightedMean::WeightedMean;

  /// `scores` are logits or probabilities [..., classes], `labels` integers [...]. A label
  /// that is no class is never met.
  void update(const at::Tensor& scores, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "Accuracy"; }
};

/// How often a score above the threshold goes with a label other than 0.
class BinaryAccuracy final : public WeightedMean {
 public:
  explicit BinaryAccuracy(const std::string& name, double threshold = 0.5)
      : WeightedMean(name), threshold_(threshold) {}
  BinaryAccuracy(const Strategy& strategy, const std::string& name, double threshold = 0.5)
      : WeightedMean(strategy, name), threshold_(threshold) {}

  /// Of equal shapes.
  void update(const at::Tensor& scores, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "BinaryAccuracy"; }

  double threshold_;
};

/// How often less than k classes have a greater score than the label's, which must be finite.
class TopKAccuracy final : public WeightedMean {
 public:
  /// Throws kInvalidArgument unless k is positive.
  explicit TopKAccuracy(const std::string& name, int64_t k = 5);
  TopKAccuracy(const Strategy& strategy, const std::string& name, int64_t k = 5);

  /// As Accuracy::update.
  void update(const at::Tensor& scores, const at::Tensor& labels,
              const std::optional<at::Tensor>& weights = std::nullopt) const;

 private:
  const char* kind() const override { return "TopKAccuracy"; }

  int64_t k_;
};

/// The mean of (prediction - target)^2 over all elements.
class MeanSquaredError final : public WeightedMean {
 public:
  using WeightedMean::WeightedMean;

  /// Of equal shapes.
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

  /// Instead of num_thresholds: those between the two at the ends, each in [0, 1].
  std::vector<double> thresholds = {};

  /// Whether predictions are logits.
  bool from_logits = false;
};

/// The area under a curve, approximated by thresholds as tf.keras.metrics.AUC does. Without
/// examples of both kinds it is 0.
class Auc final : public Metric {
 public:
  /// Throws kInvalidArgument for bad options.
  explicit Auc(const std::string& name, const AucOptions& options = {});
  Auc(const Strategy& strategy, const std::string& name, const AucOptions& options = {});

  /// Of equal shapes. Predictions lie in [0, 1] unless they are logits; labels other than 0
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
