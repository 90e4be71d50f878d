// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/update_rules/adam.h"

#include <cmath>

#include "tutti/train/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_adam(const AdamRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(AdamRule::kName, slice, rule.num_states());
  const auto step = static_cast<double>(slice.step);
  const double correction1 = 1 - std::pow(rule.beta1, step);
  const double correction2 = 1 - std::pow(rule.beta2, step);
  const internal::AdamTerms terms = {.minus_step_size = -(rule.lr / correction1),
                                     .beta1 = rule.beta1,
                                     .one_minus_beta1 = 1 - rule.beta1,
                                     .beta2 = rule.beta2,
                                     .one_minus_beta2 = 1 - rule.beta2,
                                     .root_of_correction2 = std::sqrt(correction2),
                                     .eps = rule.eps,
                                     .weight_decay = rule.weight_decay,
                                     .parameter_factor = 1,
                                     .amsgrad = rule.amsgrad};
  internal::update_kernels<T>().adam(terms, slice);
}

}  // namespace

void apply(const AdamRule& rule, const UpdateSlice<float>& slice) { apply_adam(rule, slice); }
void apply(const AdamRule& rule, const UpdateSlice<double>& slice) { apply_adam(rule, slice); }

}  // namespace tutti
