// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include "tutti/base/error.h"
#include "tutti/nest/print.h"
#include "tutti/train/internal/weights.h"
#include "tutti/values/context_frame.h"
#include "tutti/values/variable_impl.h"

namespace tutti::metrics {
namespace {

[[noreturn]] void refuse(const std::string& who, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message(who, ": ", reason));
}

Variable make_totals(const std::string& name, at::IntArrayRef shape) {
  return Variable([&] { return at::zeros(shape, at::kDouble); },
                  {.name = name,
                   .synchronization = VariableSynchronization::kOnRead,
                   .aggregation = VariableAggregation::kSum});
}

void check_numbers(const std::string& who, const char* what, const at::Tensor& values) {
  if (values.defined() && values.layout() == at::kStrided &&
      !at::isComplexType(values.scalar_type())) {
    return;
  }
  refuse(who, message(what, " are ", describe(values),
                      ", but they must be a dense tensor of real numbers or booleans."));
}

void check_same_shape(const std::string& who, const char* what, const at::Tensor& a,
                      const char* others, const at::Tensor& b) {
  check_numbers(who, what, a);
  check_numbers(who, others, b);
  if (a.sizes() == b.sizes()) return;
  refuse(who, message(what, " are ", describe(a), ", but ", others, " are ", describe(b),
                      "; their shapes must be equal."));
}

void check_classes(const std::string& who, const at::Tensor& scores, const at::Tensor& labels) {
  check_numbers(who, "the scores", scores);
  check_numbers(who, "the labels", labels);
  if (!at::isIntegralType(labels.scalar_type(), /*includeBool=*/false)) {
    refuse(who, message("the labels are ", describe(labels),
                        ", but they must be integers, the indices of classes. For one-hot labels "
                        "pass labels.argmax(-1)."));
  }
  if (scores.dim() == 0 || scores.size(-1) == 0 || scores.scalar_type() == at::kBool ||
      scores.sizes().slice(0, static_cast<size_t>(scores.dim() - 1)) != labels.sizes()) {
    refuse(who,
           message("the scores are ", describe(scores), " and the labels are ", describe(labels),
                   ", but scores must be numbers [..., classes] and labels [...]."));
  }
}

// An example that does not count may have any value, even an infinite one.
at::Tensor weighted(const at::Tensor& values, const at::Tensor& factors) {
  return values.mul(factors).masked_fill_(factors.eq(0), 0);
}

double ratio(double a, double b) { return b == 0 ? 0 : a / b; }

}  // namespace

// ---- Metric ----------------------------------------------------------------------

Metric::Metric(const std::string& name, at::IntArrayRef shape)
    : name_(name), totals_(make_totals(name, shape)) {}

Metric::Metric(const Strategy& strategy, const std::string& name, at::IntArrayRef shape)
    : name_(name), totals_(strategy.scope([&] { return make_totals(name, shape); })) {}

std::string Metric::who() const { return message("metrics::", kind(), " '", name_, "'"); }

double Metric::result(CallSite site) const {
  const at::NoGradGuard no_grad;
  const auto synchronised = variable_sync_on_read_context();
  const internal::OperationNameScope name(who());
  try {
    const at::Tensor totals = totals_;
    return compute(totals.to(at::kCPU).contiguous());
  } catch (const Error& error) {
    if (typeid(error) != typeid(Error)) throw;  // so that a cancelled replica is recognised as one
    throw Error(error.code(), message(who(), ": result() at ", site, ": ", error.what()));
  }
}

void Metric::reset() const { totals_.assign(0, {.read_value = false}); }

void Metric::add(const at::Tensor& numbers) const {
  const internal::ContextFrame* frame = internal::current_frame();
  const Strategy strategy = totals_.strategy();
  StrategyExtended& extended = strategy.extended();
  if ((frame != nullptr && frame->replica != nullptr) || extended.is_ambient()) {
    totals_.assign_add(numbers, {.read_value = false});
    return;
  }
  // Counts once among all replicas of all workers.
  totals_.impl()->check_usable("assign_add");
  const bool first_worker = extended.replica_context(0).replica_id_in_sync_group() == 0;
  extended.update(totals_, [&](const Variable& copy) {
    if (first_worker && get_update_replica_id() == 0) {
      copy.assign_add(numbers, {.read_value = false});
    }
  });
}

// ---- means and sums ----------------------------------------------------------------

void WeightedMean::add_examples(const at::Tensor& values,
                                const std::optional<at::Tensor>& weights) const {
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = values.detach().to(at::kDouble);
  const auto options = numbers.options();
  if (!weights) {
    add(at::stack(
        {numbers.sum(), at::scalar_tensor(static_cast<double>(numbers.numel()), options)}));
    return;
  }
  const at::Tensor factors =
      internal::broadcast_weights(who(), *weights, "the examples", values).to(options);
  add(at::stack({weighted(numbers, factors).sum(), factors.sum()}));
}

double WeightedMean::compute(const at::Tensor& totals) const {
  const auto* const total = totals.data_ptr<double>();
  return ratio(total[0], total[1]);
}

void Mean::update(const at::Tensor& values, const std::optional<at::Tensor>& weights) const {
  check_numbers(who(), "the values", values);
  add_examples(values, weights);
}

void Mean::update(double value, double weight) const {
  add_examples(at::scalar_tensor(value, at::kDouble), at::scalar_tensor(weight, at::kDouble));
}

void Sum::update(const at::Tensor& values, const std::optional<at::Tensor>& weights) const {
  check_numbers(who(), "the values", values);
  const at::NoGradGuard no_grad;
  at::Tensor numbers = values.detach().to(at::kDouble);
  if (weights) {
    const at::Tensor factors =
        internal::broadcast_weights(who(), *weights, "the values", values).to(numbers.options());
    numbers = weighted(numbers, factors);
  }
  add(numbers.sum().reshape({1}));
}

void Sum::update(double value) const { update(at::scalar_tensor(value, at::kDouble)); }

double Sum::compute(const at::Tensor& totals) const { return totals.data_ptr<double>()[0]; }

void MeanSquaredError::update(const at::Tensor& predictions, const at::Tensor& targets,
                              const std::optional<at::Tensor>& weights) const {
  check_same_shape(who(), "the predictions", predictions, "the targets", targets);
  const at::NoGradGuard no_grad;
  add_examples(predictions.to(at::kDouble).sub(targets.to(at::kDouble)).square_(), weights);
}

// ---- accuracies --------------------------------------------------------------------

void Accuracy::update(const at::Tensor& scores, const at::Tensor& labels,
                      const std::optional<at::Tensor>& weights) const {
  check_classes(who(), scores, labels);
  const at::NoGradGuard no_grad;
  add_examples(scores.argmax(-1).eq(labels), weights);
}

void BinaryAccuracy::update(const at::Tensor& scores, const at::Tensor& labels,
                            const std::optional<at::Tensor>& weights) const {
  check_same_shape(who(), "the scores", scores, "the labels", labels);
  const at::NoGradGuard no_grad;
  add_examples(scores.to(at::kDouble).gt(threshold_).eq(labels.ne(0)), weights);
}

namespace {

int64_t checked_k(const std::string& name, int64_t k) {
  if (k <= 0) {
    refuse(message("metrics::TopKAccuracy '", name, "'"),
           message("k is ", k, "; it must be positive."));
  }
  return k;
}

}  // namespace

TopKAccuracy::TopKAccuracy(const std::string& name, int64_t k)
    : WeightedMean(name), k_(checked_k(name, k)) {}

TopKAccuracy::TopKAccuracy(const Strategy& strategy, const std::string& name, int64_t k)
    : WeightedMean(strategy, name), k_(checked_k(name, k)) {}

void TopKAccuracy::update(const at::Tensor& scores, const at::Tensor& labels,
                          const std::optional<at::Tensor>& weights) const {
  check_classes(who(), scores, labels);
  const at::NoGradGuard no_grad;
  const at::Tensor classes = labels.to(at::kLong).unsqueeze(-1);
  const at::Tensor known = classes.ge(0).logical_and_(classes.lt(scores.size(-1)));
  const at::Tensor own = scores.gather(-1, classes.clamp(0, scores.size(-1) - 1));
  const at::Tensor greater = scores.gt(own).sum(-1, /*keepdim=*/true);
  add_examples(greater.lt(k_).logical_and_(known).logical_and_(at::isfinite(own)).squeeze(-1),
               weights);
}

// ---- area under a curve --------------------------------------------------------------

namespace {

// The ends lie just outside of [0, 1]: the first below and the last above every prediction.
constexpr double kBeyond = 1e-7;

at::Tensor make_thresholds(const std::string& name, const AucOptions& options) {
  const std::string who = message("metrics::Auc '", name, "'");
  std::vector<double> inner = options.thresholds;
  if (inner.empty()) {
    if (options.num_thresholds < 2) {
      refuse(who, message("num_thresholds is ", options.num_thresholds, "; it must be 2 or more."));
    }
    for (int64_t i = 1; i < options.num_thresholds - 1; ++i) {
      inner.push_back(static_cast<double>(i) / static_cast<double>(options.num_thresholds - 1));
    }
  }
  for (const double each : inner) {
    if (each >= 0 && each <= 1) continue;
    refuse(who, message("one of the thresholds is ", each, "; they must lie in [0, 1]."));
  }
  std::sort(inner.begin(), inner.end());
  const c10::InferenceMode ordinary_tensors(false);
  at::Tensor thresholds = at::empty({static_cast<int64_t>(inner.size()) + 2}, at::kDouble);
  auto* const data = thresholds.data_ptr<double>();
  data[0] = -kBeyond;
  std::copy(inner.begin(), inner.end(), data + 1);
  data[inner.size() + 1] = 1 + kBeyond;
  return thresholds;
}

int64_t count_thresholds(const AucOptions& options) {
  return options.thresholds.empty() ? std::max<int64_t>(options.num_thresholds, 2)
                                    : static_cast<int64_t>(options.thresholds.size()) + 2;
}

// The total weights above each threshold, of the examples of one kind.
std::vector<double> weights_above(const double* bins, int64_t thresholds) {
  std::vector<double> above(static_cast<size_t>(thresholds));
  double sum = 0;
  for (int64_t t = thresholds - 1; t >= 0; --t) {
    sum += bins[t + 1];
    above[static_cast<size_t>(t)] = sum;
  }
  return above;
}

double roc_area(const std::vector<double>& tp, const std::vector<double>& fp) {
  // All examples lie above the first threshold.
  const double positives = tp[0];
  const double negatives = fp[0];
  double area = 0;
  for (size_t t = 0; t + 1 < tp.size(); ++t) {
    const double height = (ratio(tp[t], positives) + ratio(tp[t + 1], positives)) / 2;
    area += (ratio(fp[t], negatives) - ratio(fp[t + 1], negatives)) * height;
  }
  return area;
}

// Between two thresholds true positives grow linearly with all positives, which makes the
// precision a hyperbola: its integral has a logarithm.
double pr_area(const std::vector<double>& tp, const std::vector<double>& fp) {
  double area = 0;
  for (size_t t = 0; t + 1 < tp.size(); ++t) {
    const double more = tp[t] + fp[t];
    const double less = tp[t + 1] + fp[t + 1];
    const double gained = tp[t] - tp[t + 1];
    const double slope = ratio(gained, more - less);
    const double intercept = tp[t + 1] - slope * less;
    const double growth = more > 0 && less > 0 ? more / less : 1;
    area += ratio(slope * (gained + intercept * std::log(growth)), tp[0]);
  }
  return area;
}

}  // namespace

Auc::Auc(const std::string& name, const AucOptions& options)
    : Metric(name, {2, count_thresholds(options) + 1}),
      options_(options),
      thresholds_(make_thresholds(name, options)) {}

Auc::Auc(const Strategy& strategy, const std::string& name, const AucOptions& options)
    : Metric(strategy, name, {2, count_thresholds(options) + 1}),
      options_(options),
      thresholds_(make_thresholds(name, options)) {}

// Counts examples in bins between thresholds; result() adds the bins above each.
void Auc::update(const at::Tensor& predictions, const at::Tensor& labels,
                 const std::optional<at::Tensor>& weights) const {
  check_same_shape(who(), "the predictions", predictions, "the labels", labels);
  const at::NoGradGuard no_grad;
  at::Tensor values = predictions.detach().to(at::kDouble);
  if (options_.from_logits) values = values.sigmoid();
  if (values.numel() > 0) {
    const auto least = values.min().item<double>();
    const auto greatest = values.max().item<double>();
    if (!(least >= 0 && greatest <= 1)) {
      refuse(who(), message("the predictions range from ", least, " to ", greatest,
                            ", but probabilities lie in [0, 1]. Apply sigmoid, or set "
                            "AucOptions::from_logits."));
    }
  }
  const auto options = values.options();
  const at::Tensor factors =
      internal::broadcast_weights(who(), weights.value_or(at::scalar_tensor(1, options)),
                                  "the examples", values)
          .to(options);
  const int64_t bins = thresholds_.numel() + 1;
  const at::Tensor bin = at::searchsorted(thresholds_.to(values.device()), values.reshape({-1}));
  const at::Tensor row = labels.eq(0).to(at::kLong).reshape({-1});  // 0: positive
  const at::Tensor counts = at::zeros({2 * bins}, options);
  counts.index_add_(0, row.mul(bins).add(bin), factors.reshape({-1}));
  add(counts.reshape({2, bins}));
}

double Auc::compute(const at::Tensor& totals) const {
  const int64_t thresholds = thresholds_.numel();
  const auto* const bins = totals.data_ptr<double>();
  const std::vector<double> tp = weights_above(bins, thresholds);
  const std::vector<double> fp = weights_above(bins + thresholds + 1, thresholds);
  return options_.curve == AucOptions::Curve::kRoc ? roc_area(tp, fp) : pr_area(tp, fp);
}

}  // namespace tutti::metrics
