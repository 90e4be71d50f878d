// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent, with momentum, dampening, Nesterov's momentum and weight decay. The
// results equal those of torch::optim::SGD on the same CPU bit for bit.

#pragma once

#include <array>

#include "tutti/update_rules/update_slice.h"

namespace tutti {

/// The options of torch::optim::SGD, which has no default for lr. A plain value.
///
/// State: with momentum, 0 is momentum_buffer. Step 1 overwrites it with the gradient, and
/// dampening begins at step 2.
struct SgdRule {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  ///< Has no effect if momentum is 0.

  static constexpr const char* kName = "sgd";
  int num_states() const { return momentum == 0 ? 0 : 1; }
  std::array<double, 5> options() const {
    return {lr, momentum, dampening, weight_decay, nesterov ? 1.0 : 0.0};
  }
  double initial_state(int) const { return 0; }
  bool operator==(const SgdRule&) const = default;
};

/// See apply() in update_rule.h.
void apply(const SgdRule& rule, const UpdateSlice<float>& slice);
void apply(const SgdRule& rule, const UpdateSlice<double>& slice);

}  // namespace tutti
