// SPDX-License-Identifier: Apache-2.0
//
// Checks what a DistributedOptimizer was given.

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "tutti/train/optimizer/optimizer_options.h"
#include "tutti/train/replicated_modules.h"

namespace tutti::internal {

/// Throws kInvalidArgument, with the field and its value.
void check_options(const DistributedOptimizerOptions& options);

/// Throws kInvalidArgument if the groups have no parameters, and warns if none can be trained.
void check_parameters(const ReplicatedModules& modules,
                      const std::vector<std::vector<size_t>>& groups);

/// The group of each parameter; none for those in no group, and for frozen ones. Throws
/// kInvalidArgument if a parameter is listed twice.
std::vector<std::optional<size_t>> groups_of_parameters(
    const ReplicatedModules& modules, const std::vector<std::vector<size_t>>& groups);

[[noreturn]] void throw_no_group_support(size_t groups);
[[noreturn]] void throw_empty_groups();

}  // namespace tutti::internal
