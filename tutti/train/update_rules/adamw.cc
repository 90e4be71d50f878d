// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/update_rules/adamw.h"

#include <cmath>

#include "tutti/train/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_adamw(const AdamWRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(AdamWRule::kName, slice, rule.num_states());
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
                                     .weight_decay = 0,
                                     .parameter_factor = 1 - rule.lr * rule.weight_decay,
                                     .amsgrad = rule.amsgrad};
  internal::update_kernels<T>().adam(terms, slice);
}

}  // namespace

void apply(const AdamWRule& rule, const UpdateSlice<float>& slice) { apply_adamw(rule, slice); }
void apply(const AdamWRule& rule, const UpdateSlice<double>& slice) { apply_adamw(rule, slice); }

}  // namespace tutti
