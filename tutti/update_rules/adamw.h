// SPDX-License-Identifier: Apache-2.0
//
// Adam with decoupled weight decay: the parameter shrinks by lr * weight_decay of itself before
// each update, as in torch::optim::AdamW.

#pragma once

#include <array>

#include "tutti/update_rules/update_slice.h"

namespace tutti {

/// The options of torch::optim::AdamW. A plain value.
///
/// States: 0 is exp_avg, 1 is exp_avg_sq; with amsgrad, 2 is max_exp_avg_sq.
struct AdamWRule {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;

  static constexpr const char* kName = "adamw";
  int num_states() const { return amsgrad ? 3 : 2; }
  std::array<double, 6> options() const {
    return {lr, beta1, beta2, eps, weight_decay, amsgrad ? 1.0 : 0.0};
  }
  double initial_state(int) const { return 0; }
  bool operator==(const AdamWRule&) const = default;
};

/// See apply() in update_rule.h.
void apply(const AdamWRule& rule, const UpdateSlice<float>& slice);
void apply(const AdamWRule& rule, const UpdateSlice<double>& slice);

}  // namespace tutti
