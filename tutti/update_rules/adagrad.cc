// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/adagrad.h"

#include "tutti/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_adagrad(const AdagradRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(AdagradRule::kName, slice, rule.num_states());
  const double lr = rule.lr / (1 + static_cast<double>(slice.step - 1) * rule.lr_decay);
  const internal::AdagradTerms terms = {
      .minus_lr = -lr, .weight_decay = rule.weight_decay, .eps = rule.eps};
  internal::update_kernels<T>().adagrad(terms, slice);
}

}  // namespace

void apply(const AdagradRule& rule, const UpdateSlice<float>& slice) { apply_adagrad(rule, slice); }
void apply(const AdagradRule& rule, const UpdateSlice<double>& slice) {
  apply_adagrad(rule, slice);
}

}  // namespace tutti
