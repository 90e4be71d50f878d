// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/natural_order.h"

#include <algorithm>
#include <cstddef>

namespace tutti::internal {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The digits at the beginning of `text`, without leading zeros, and removes them from it.
std::string_view take_number(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  std::string_view number = text.substr(0, static_cast<size_t>(end - text.begin()));
  text.remove_prefix(number.size());
  while (number.size() > 1 && number[0] == '0') number.remove_prefix(1);
  return number;
}

}  // namespace

bool natural_less(std::string_view left, std::string_view right) {
  std::string_view a = left;
  std::string_view b = right;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a[0]) && is_digit(b[0])) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return left < right;
}

}  // namespace tutti::internal
