// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/adamw.h"

#include "tutti/update_rules/internal/adam_terms.h"
#include "tutti/update_rules/internal/update_kernels.h"

namespace tutti {
namespace {

template <class T>
void apply_adamw(const AdamWRule& rule, const UpdateSlice<T>& slice) {
  internal::check_slice(AdamWRule::kName, slice, rule.num_states());
  const internal::AdamTerms terms = internal::adam_terms(
      rule, slice.step, /*weight_decay=*/0, /*parameter_factor=*/1 - rule.lr * rule.weight_decay);
  internal::update_kernels<T>().adam(terms, slice);
}

}  // namespace

void apply(const AdamWRule& rule, const UpdateSlice<float>& slice) { apply_adamw(rule, slice); }
void apply(const AdamWRule& rule, const UpdateSlice<double>& slice) { apply_adamw(rule, slice); }

}  // namespace tutti
