// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/adam.h"

#include "tutti/update_rules/internal/adam_terms.h"
#include "tutti/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_adam(const AdamRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(AdamRule::kName, slice, rule.num_states());
  const internal::AdamTerms terms = internal::adam_terms(
      rule, slice.step, /*weight_decay=*/rule.weight_decay, /*parameter_factor=*/1);
  internal::update_kernels<T>().adam(terms, slice);
}

}  // namespace

void apply(const AdamRule& rule, const UpdateSlice<float>& slice) { apply_adam(rule, slice); }
void apply(const AdamRule& rule, const UpdateSlice<double>& slice) { apply_adam(rule, slice); }

}  // namespace tutti
