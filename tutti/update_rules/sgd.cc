// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/sgd.h"

#include "tutti/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_sgd(const SgdRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(SgdRule::kName, slice, rule.num_states());
  const internal::SgdTerms terms = {.minus_lr = -rule.lr,
                                    .momentum = rule.momentum,
                                    .undamped = 1 - rule.dampening,
                                    .weight_decay = rule.weight_decay,
                                    .nesterov = rule.nesterov};
  internal::update_kernels<T>().sgd(terms, slice);
}

}  // namespace

void apply(const SgdRule& rule, const UpdateSlice<float>& slice) { apply_sgd(rule, slice); }
void apply(const SgdRule& rule, const UpdateSlice<double>& slice) { apply_sgd(rule, slice); }

}  // namespace tutti
