// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores the numbers in files: little or big endian, at any alignment.

#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tutti::data {

template <class T>
  requires std::is_unsigned_v<T> T swap_bytes(T value) {
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
    if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
    return value;
  }

template <class T>
T load_little(const void* from) {
  T value = 0;
  std::memcpy(&value, from, sizeof(T));
  return std::endian::native == std::endian::little ? value : swap_bytes(value);
}

template <class T>
T load_big(const void* from) {
  T value = 0;
  std::memcpy(&value, from, sizeof(T));
  return std::endian::native == std::endian::big ? value : swap_bytes(value);
}

template <class T>
void store_little(void* to, T value) {
  if constexpr (std::endian::native != std::endian::little) value = swap_bytes(value);
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace tutti::data
