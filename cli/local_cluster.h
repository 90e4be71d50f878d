// SPDX-License-Identifier: Apache-2.0
//
// Describes a cluster whose workers are all on this machine: their addresses, and the environment
// variables that tell each worker its place.

#pragma once

#include <map>
#include <string>
#include <vector>

namespace tutti::cli {

/// Loopback addresses, "127.0.0.1:41327", with ports that are free now. Throws kUnavailable if
/// there are not enough.
std::vector<std::string> free_addresses(int count);

/// The environment variables of worker `index`: TF_CONFIG, as cluster managers set it.
std::map<std::string, std::string> worker_environment(const std::vector<std::string>& addresses,
                                                      int index);

}  // namespace tutti::cli
