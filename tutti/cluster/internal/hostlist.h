// SPDX-License-Identifier: Apache-2.0
//
// The two notations of Slurm: host lists, "rack[0-1]node[08-11],login", and tasks per node,
// "2(x3),1". The text is bounded, since a short list can name very many hosts.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::internal {

/// As many nodes as a Slurm cluster may have.
constexpr size_t kMostHosts = 65536;

/// The hosts in the order of the list, duplicates included. Items are separated by commas; an item
/// has any number of bracketed groups of numbers and ranges, of which the last varies fastest. The
/// first number of a range determines the zero padding. Throws kInvalidArgument, which begins with
/// `who`.
std::vector<std::string> expand_hostlist(std::string_view who, std::string_view text);

/// The number of tasks on each node: "2(x3),1" is 2, 2, 2, 1. Throws kInvalidArgument.
std::vector<int> expand_tasks_per_node(std::string_view who, std::string_view text);

}  // namespace tutti::internal
