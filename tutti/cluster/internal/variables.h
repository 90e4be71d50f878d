// SPDX-License-Identifier: Apache-2.0
//
// How the resolvers read environment variables and report mistakes in them: every message shows the
// variables with their values, and names the missing ones.

#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/address.h"

namespace tutti::internal {

/// "RANK=1 and WORLD_SIZE=2 are set, but MASTER_ADDR is not": the values of those variables that
/// are set, and the names of those that are not.
std::string describe_variables(const std::vector<const char*>& names);

/// True if at least one of them is set and not empty.
bool any_is_set(std::initializer_list<const char*> names);

/// The value of a variable that is set. Throws kInvalidArgument unless it is an integer from
/// `least` to `most`.
int read_number(std::string_view who, const char* name, int least, int most);

/// TUTTI_RENDEZVOUS, which must be set. Throws kInvalidArgument if it is not "host:port".
std::string rendezvous_variable();

/// MASTER_ADDR and MASTER_PORT as one address. Throws kFailedPrecondition with `advice` if one of
/// them is not set, kInvalidArgument if they do not form an address.
Address master_variables(std::string_view who, const std::string& advice);

/// Throws kFailedPrecondition: "<who>: <what>. <advice>".
[[noreturn]] void refuse_environment(std::string_view who, const std::string& what,
                                     const std::string& advice);

}  // namespace tutti::internal
