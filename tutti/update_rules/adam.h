// SPDX-License-Identifier: Apache-2.0
//
// Adam, with or without AMSGrad. Weight decay is added to the gradient, as in torch::optim::Adam;
// adamw.h has decoupled weight decay.

#pragma once

#include <array>

#include "tutti/update_rules/update_slice.h"

namespace tutti {

/// The options of torch::optim::Adam. A plain value.
///
/// States: 0 is exp_avg, 1 is exp_avg_sq; with amsgrad, 2 is max_exp_avg_sq.
struct AdamRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;

  static constexpr const char* kName = "adam";
  int num_states() const { return amsgrad ? 3 : 2; }
  std::array<double, 6> options() const {
    return {lr, beta1, beta2, eps, weight_decay, amsgrad ? 1.0 : 0.0};
  }
  double initial_state(int) const { return 0; }
  bool operator==(const AdamRule&) const = default;
};

/// See apply() in update_rule.h.
void apply(const AdamRule& rule, const UpdateSlice<float>& slice);
void apply(const AdamRule& rule, const UpdateSlice<double>& slice);

}  // namespace tutti
