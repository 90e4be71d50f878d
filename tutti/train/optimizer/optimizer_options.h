// SPDX-License-Identifier: Apache-2.0
//
// The options of a DistributedOptimizer, and what a step of it reports.

#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

namespace tutti {

/// What to do when the sum of gradients is infinite or not a number.
enum class NonFinite {
  kIgnore,  ///< Update with it, as torch::optim does; nothing is checked.
  kStop,    ///< Throw kDataLoss on all replicas; no parameter has changed.
  kSkip,    ///< Leave this step out on all replicas.
};

struct DistributedOptimizerOptions {
  /// step() updates in every k-th call; in between gradients add up and zero_grad() does nothing.
  int accumulate = 1;

  /// The gradient of all parameters together is scaled down to this norm.
  std::optional<double> clip_norm = {};

  NonFinite non_finite = NonFinite::kIgnore;

  /// Gradients are rounded to this dtype before they are summed; parameters keep theirs.
  std::optional<at::ScalarType> communication_dtype = {};

  /// Parameters are compared between the replicas, in every update; those that the optimizer does
  /// not update once in so many steps. 0: never.
  int check_every = 100;

  /// Gradients are summed in buckets of about this size.
  int64_t bytes_per_bucket = 1 << 20;

  /// False: torch::optim's own step, on one replica, instead of the fused update.
  bool fused = true;
};

/// How one step differs from others.
struct StepControl {
  double gradient_factor = 1;    ///< Of every gradient, before it is clipped.
  bool skip_non_finite = false;  ///< As NonFinite::kSkip.
};

struct StepResult {
  bool updated = false;     ///< False: still accumulating, or left out.
  bool non_finite = false;  ///< Left out because of the gradient.
  double norm = 0;          ///< Of the gradient before clipping, if it was needed.

  explicit operator bool() const { return updated; }
};

}  // namespace tutti
