// SPDX-License-Identifier: Apache-2.0
//
// The options of a DistributedOptimizer, and what a step of it reports.

#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

namespace tutti {

/// What to do when the sum of gradients is infinite or NaN.
enum class NonFinite {
  kIgnore,  ///< Update with it, as torch::optim does; nothing is checked.
  kStop,    ///< Throw kDataLoss on all replicas; no parameter has changed.
  kSkip,    ///< Skip this step on all replicas.
};

struct DistributedOptimizerOptions {
  /// step() updates in every k-th call; in between, gradients add up and zero_grad() does nothing.
  int accumulate = 1;

  /// The gradient of all parameters together is scaled down to at most this norm.
  std::optional<double> clip_norm = {};

  NonFinite non_finite = NonFinite::kIgnore;

  /// Gradients are rounded to this dtype before they are summed; parameters keep theirs.
  std::optional<at::ScalarType> communication_dtype = {};

  /// Parameters are compared between the replicas: in every update, or, if the optimizer does not
  /// update them, once in this many steps. 0: never.
  int check_every = 100;

  /// Gradients are summed in buckets of about this size.
  int64_t bytes_per_bucket = 1 << 20;

  /// False: use torch::optim's own step, on one replica, instead of the fused update.
  bool fused = true;
};

/// How one step differs from others.
struct StepControl {
  double gradient_factor = 1;    ///< Scales every gradient, before clipping.
  bool skip_non_finite = false;  ///< Like NonFinite::kSkip.
};

/// What a step did. A plain value.
struct StepResult {
  bool updated = false;     ///< False: still accumulating, or skipped.
  bool non_finite = false;  ///< Skipped because of the gradient.
  double norm = 0;          ///< The gradient's norm before clipping, if it was needed.

  explicit operator bool() const { return updated; }
};

}  // namespace tutti
