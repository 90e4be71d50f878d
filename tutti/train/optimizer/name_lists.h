// SPDX-License-Identifier: Apache-2.0
//
// Formats lists of parameters for messages.

#pragma once

#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti::internal {

/// "'weight', 'bias'"
inline std::string quoted_list(const std::vector<std::string>& names) {
  return names.empty() ? "" : "'" + joined(names, "', '") + "'";
}

/// "'a', 'b', 'c' and 5 more"
inline std::string first_few(std::vector<std::string> names) {
  const size_t all = names.size();
  if (all > 3) names.resize(3);
  return quoted_list(names) + (all > 3 ? message(" and ", all - 3, " more") : "");
}

}  // namespace tutti::internal
