// SPDX-License-Identifier: Apache-2.0
//
// Formats lists for messages.

#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <string_view>

namespace tutti {

/// "a, b, c": the elements, as operator<< prints them, with the separator between two of them. The
/// projection, which may be a pointer to a member, turns an element into what is printed.
template <class Range, class Projection = std::identity>
std::string joined(const Range& range, std::string_view separator = ", ",
                   Projection projection = {}) {
  std::ostringstream out;
  bool is_first = true;
  for (const auto& each : range) {
    if (!is_first) out << separator;
    is_first = false;
    out << std::invoke(projection, each);
  }
  return out.str();
}

/// "a, b and c"
template <class Range, class Projection = std::identity>
std::string joined_with_and(const Range& range, Projection projection = {}) {
  std::ostringstream out;
  auto at = range.begin();
  for (bool is_first = true; at != range.end(); is_first = false) {
    const auto& each = *at++;
    if (!is_first) out << (at == range.end() ? " and " : ", ");
    out << std::invoke(projection, each);
  }
  return out.str();
}

}  // namespace tutti
