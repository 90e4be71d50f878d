// SPDX-License-Identifier: Apache-2.0
//
// Adagrad: steps shrink with the sum of all squared gradients, as in torch::optim::Adagrad.

#pragma once

#include <array>

#include "tutti/update_rules/update_slice.h"

namespace tutti {

/// The options of torch::optim::Adagrad. A plain value.
///
/// State: 0 is sum, which starts at initial_accumulator_value.
struct AdagradRule {
  double lr = 1e-2;
  double lr_decay = 0;  ///< Step n has the rate lr / (1 + (n - 1) * lr_decay).
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;

  static constexpr const char* kName = "adagrad";
  int num_states() const { return 1; }
  std::array<double, 5> options() const {
    return {lr, lr_decay, weight_decay, initial_accumulator_value, eps};
  }
  double initial_state(int) const { return initial_accumulator_value; }
  bool operator==(const AdagradRule&) const = default;
};

/// See apply() in update_rule.h.
void apply(const AdagradRule& rule, const UpdateSlice<float>& slice);
void apply(const AdagradRule& rule, const UpdateSlice<double>& slice);

}  // namespace tutti
