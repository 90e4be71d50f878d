// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/rmsprop.h"

#include "tutti/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_rmsprop(const RmspropRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(RmspropRule::kName, slice, rule.num_states());
  const internal::RmspropTerms terms = {.minus_lr = -rule.lr,
                                        .alpha = rule.alpha,
                                        .one_minus_alpha = 1 - rule.alpha,
                                        .eps = rule.eps,
                                        .weight_decay = rule.weight_decay,
                                        .momentum = rule.momentum,
                                        .centered = rule.centered};
  internal::update_kernels<T>().rmsprop(terms, slice);
}

}  // namespace

void apply(const RmspropRule& rule, const UpdateSlice<float>& slice) { apply_rmsprop(rule, slice); }
void apply(const RmspropRule& rule, const UpdateSlice<double>& slice) {
  apply_rmsprop(rule, slice);
}

}  // namespace tutti
