// SPDX-License-Identifier: Apache-2.0
//
// The update rules that replace the optimizers of torch::optim. An optimizer that is not listed
// here runs its own step().

#pragma once

#include <type_traits>

#include "tutti/train/torch_names.h"
#include "tutti/update_rules/update_rule.h"

namespace tutti {

UpdateRule rule_of(const torch::optim::SGDOptions& options);
UpdateRule rule_of(const torch::optim::AdamOptions& options);
UpdateRule rule_of(const torch::optim::AdamWOptions& options);
UpdateRule rule_of(const torch::optim::AdagradOptions& options);
UpdateRule rule_of(const torch::optim::RMSpropOptions& options);

namespace internal {

/// The options of an optimizer that has a rule; void for others.
template <class O>
struct fused_options {
  using type = void;
};
template <>
struct fused_options<torch::optim::SGD> {
  using type = torch::optim::SGDOptions;
};
template <>
struct fused_options<torch::optim::Adam> {
  using type = torch::optim::AdamOptions;
};
template <>
struct fused_options<torch::optim::AdamW> {
  using type = torch::optim::AdamWOptions;
};
template <>
struct fused_options<torch::optim::Adagrad> {
  using type = torch::optim::AdagradOptions;
};
template <>
struct fused_options<torch::optim::RMSprop> {
  using type = torch::optim::RMSpropOptions;
};

/// The options of an optimizer that has a rule; for others, a type that nothing converts to.
template <class O>
struct known_options {
  struct Unknown {
    Unknown() = delete;
  };
  using type = std::conditional_t<std::is_void_v<typename fused_options<O>::type>, Unknown,
                                  typename fused_options<O>::type>;
};

}  // namespace internal
}  // namespace tutti
