// SPDX-License-Identifier: Apache-2.0
//
// RMSprop, plain or centered, with or without momentum, as in torch::optim::RMSprop.

#pragma once

#include <array>

#include "tutti/update_rules/update_slice.h"

namespace tutti {

/// The options of torch::optim::RMSprop. A plain value.
///
/// States: 0 is square_avg; then momentum_buffer, if there is momentum; then grad_avg, if centered.
struct RmspropRule {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;

  static constexpr const char* kName = "rmsprop";
  int num_states() const { return 1 + (momentum != 0 ? 1 : 0) + (centered ? 1 : 0); }
  std::array<double, 6> options() const {
    return {lr, alpha, eps, weight_decay, momentum, centered ? 1.0 : 0.0};
  }
  double initial_state(int) const { return 0; }
  bool operator==(const RmspropRule&) const = default;
};

/// See apply() in update_rule.h.
void apply(const RmspropRule& rule, const UpdateSlice<float>& slice);
void apply(const RmspropRule& rule, const UpdateSlice<double>& slice);

}  // namespace tutti
