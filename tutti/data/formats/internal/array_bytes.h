// SPDX-License-Identifier: Apache-2.0
//
// How many bytes an array from a file takes; the shape in the file is not trusted.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <c10/util/ArrayRef.h>

namespace tutti::data {

/// More dimensions than this count as damage.
inline constexpr size_t kMaxDimensions = 64;

/// The size of a dense array, or nullopt if it, or a stride of it, would overflow.
inline std::optional<int64_t> array_bytes(at::IntArrayRef shape, size_t element_size) {
  if (shape.size() > kMaxDimensions) return std::nullopt;
  auto bytes = static_cast<int64_t>(element_size);
  bool is_empty = false;
  for (const int64_t length : shape) {
    if (length < 0) return std::nullopt;
    is_empty = is_empty || length == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(length, 1), &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : bytes;
}

}  // namespace tutti::data
