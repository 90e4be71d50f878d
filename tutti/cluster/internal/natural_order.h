// SPDX-License-Identifier: Apache-2.0
//
// The order of names that end in numbers: "algo-2" before "algo-10".

#pragma once

#include <string_view>

namespace tutti::internal {

/// True if `left` comes before `right` when runs of digits are compared as numbers, and everything
/// else as bytes. Names that differ only in leading zeros are compared as bytes.
bool natural_less(std::string_view left, std::string_view right);

}  // namespace tutti::internal
