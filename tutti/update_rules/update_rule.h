// SPDX-License-Identifier: Apache-2.0
//
// The update rules of the library, as one value: hyperparameters that can be copied, compared and
// applied to slices. Each rule has its own file in this folder.

#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/update_rules/adagrad.h"
#include "tutti/update_rules/adam.h"
#include "tutti/update_rules/adamw.h"
#include "tutti/update_rules/rmsprop.h"
#include "tutti/update_rules/sgd.h"
#include "tutti/update_rules/update_slice.h"

namespace tutti {

/// Each rule has the options of the torch::optim optimizer of the same name and computes the same
/// results: SGD bit for bit, the others up to the rounding of single operations. LibTorch validates
/// options; rules do not.
using UpdateRule = std::variant<SgdRule, AdamRule, AdamWRule, AdagradRule, RmspropRule>;

/// The number of state values that the rule keeps per element of a parameter, which depends on the
/// hyperparameters. Each rule documents their order.
int num_states(const UpdateRule& rule);

/// The value of state i before the first update.
double initial_state(const UpdateRule& rule, int i);

/// "adamw"
std::string name_of(const UpdateRule& rule);

double learning_rate(const UpdateRule& rule);

/// Appends its hyperparameters in the order of declaration; the learning rate comes first.
void append_options(const UpdateRule& rule, std::vector<double>& list);

/// Applies one update to the slice. Pure: the result depends only on the arguments and the CPU's
/// instruction set, element by element, so a slice may be cut anywhere. Hyperparameters and the
/// gradient factor are rounded to the element type, as LibTorch does. Thread-safe for slices that
/// do not overlap.
///
/// Throws kInvalidArgument if the slice has null pointers or a negative count, or if the step is
/// below 1.
void apply(const UpdateRule& rule, const UpdateSlice<float>& slice);
void apply(const UpdateRule& rule, const UpdateSlice<double>& slice);

/// The same for non-const arguments: UpdateRule is a type of std, so argument-dependent lookup also
/// finds std::apply, which would be a better match than the functions above.
template <class Rule, class Slice>
  requires(std::is_same_v<std::remove_cvref_t<Rule>, UpdateRule> &&
           (std::is_same_v<std::remove_cvref_t<Slice>, UpdateSlice<float>> ||
            std::is_same_v<std::remove_cvref_t<Slice>, UpdateSlice<double>>))
void apply(Rule&& rule, Slice&& slice) { apply(std::as_const(rule), std::as_const(slice)); }

}  // namespace tutti
