// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/update_rule.h"

namespace tutti {

int num_states(const UpdateRule& rule) {
  return std::visit([](const auto& r) { return r.num_states(); }, rule);
}

double initial_state(const UpdateRule& rule, int i) {
  return std::visit([i](const auto& r) { return r.initial_state(i); }, rule);
}

std::string name_of(const UpdateRule& rule) {
  return std::visit([](const auto& r) { return std::string(r.kName); }, rule);
}

double learning_rate(const UpdateRule& rule) {
  return std::visit([](const auto& r) { return r.lr; }, rule);
}

void append_options(const UpdateRule& rule, std::vector<double>& list) {
  std::visit(
      [&](const auto& r) {
        const auto options = r.options();
        list.insert(list.end(), options.begin(), options.end());
      },
      rule);
}

void apply(const UpdateRule& rule, const UpdateSlice<float>& slice) {
  std::visit([&](const auto& r) { apply(r, slice); }, rule);
}

void apply(const UpdateRule& rule, const UpdateSlice<double>& slice) {
  std::visit([&](const auto& r) { apply(r, slice); }, rule);
}

}  // namespace tutti
