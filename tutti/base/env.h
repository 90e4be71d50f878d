// SPDX-License-Identifier: Apache-2.0
//
// The only place that reads the environment; docs/environment.md lists the
// variables. An explicit option always wins over a variable.

#pragma once

#include <optional>
#include <string>

namespace tutti {

/// The variable's value, or nothing when it is unset or empty.
std::optional<std::string> read_env(const char* name);

/// True if the variable is set, even to an empty value. For variables to which others give an empty
/// value a meaning of its own.
bool has_env(const char* name);

}  // namespace tutti
