// SPDX-License-Identifier: Apache-2.0
//
// Adam and AdamW share everything except what weight decay acts on.

#pragma once

#include <cmath>
#include <cstdint>

#include "tutti/update_rules/internal/update_kernels.h"

namespace tutti::internal {

/// The terms of an AdamRule or AdamWRule. `weight_decay` is added to the gradient; the parameter is
/// multiplied by `parameter_factor`.
template <class Rule>
AdamTerms adam_terms(const Rule& rule, int64_t step, double weight_decay, double parameter_factor) {
  const auto steps = static_cast<double>(step);
  const double correction1 = 1 - std::pow(rule.beta1, steps);
  const double correction2 = 1 - std::pow(rule.beta2, steps);
  return {.minus_step_size = -(rule.lr / correction1),
          .beta1 = rule.beta1,
          .one_minus_beta1 = 1 - rule.beta1,
          .beta2 = rule.beta2,
          .one_minus_beta2 = 1 - rule.beta2,
          .root_of_correction2 = std::sqrt(correction2),
          .eps = rule.eps,
          .weight_decay = weight_decay,
          .parameter_factor = parameter_factor,
          .amsgrad = rule.amsgrad};
}

}  // namespace tutti::internal
