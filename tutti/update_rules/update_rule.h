// SPDX-License-Identifier: Apache-2.0
//
// The update rules of the library, as one value: hyperparameters that can be copied, compared
// and applied to slices. Each rule is a file of its own beside this one.

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

/// Each rule has the options of the optimizer of torch::optim with its name, and gives its results:
/// SGD the same bits, the others the same up to the rounding of single operations. LibTorch checks
/// the values of options; rules do not.
using UpdateRule = std::variant<SgdRule, AdamRule, AdamWRule, AdagradRule, RmspropRule>;

/// How many numbers of state the rule keeps for each element of a parameter; depends on the
/// hyperparameters. The rules say which is which.
int num_states(const UpdateRule& rule);

/// What state number i is before the first update.
double initial_state(const UpdateRule& rule, int i);

/// "adamw"
std::string name_of(const UpdateRule& rule);

double learning_rate(const UpdateRule& rule);

/// Adds its hyperparameters to a list, in the order in which it declares them; the learning rate is
/// the first.
void append_options(const UpdateRule& rule, std::vector<double>& list);

/// One update of the slice. Pure: the result depends on the arguments and the instruction set of
/// the CPU alone, element by element, so a slice may be cut anywhere. Hyperparameters and the
/// factor of the gradient are rounded to the type of the elements, as LibTorch does. Thread-safe
/// for slices that do not overlap.
///
/// Throws kInvalidArgument if memory of the slice is missing, or if the step is below 1.
void apply(const UpdateRule& rule, const UpdateSlice<float>& slice);
void apply(const UpdateRule& rule, const UpdateSlice<double>& slice);

/// The same for arguments that are not const: UpdateRule is a type of std, so std::apply is found
/// too, and would match them better than the functions above.
template <class Rule, class Slice>
  requires(std::is_same_v<std::remove_cvref_t<Rule>, UpdateRule> &&
           (std::is_same_v<std::remove_cvref_t<Slice>, UpdateSlice<float>> ||
            std::is_same_v<std::remove_cvref_t<Slice>, UpdateSlice<double>>))
void apply(Rule&& rule, Slice&& slice) { apply(std::as_const(rule), std::as_const(slice)); }

}  // namespace tutti
