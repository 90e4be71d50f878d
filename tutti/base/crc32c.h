// SPDX-License-Identifier: Apache-2.0
//
// CRC-32C (Castagnoli), the checksum of TFRecord and TensorBoard event files, and the
// mask these files apply to it. Uses the processor's CRC instruction where available.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

/// The checksum of `size` bytes. `seed` is the checksum of the bytes before them:
/// crc32c(b, n, crc32c(a, m)) is the checksum of a followed by b.
uint32_t crc32c(const void* data, size_t size, uint32_t seed = 0);

/// Files store masked checksums, because the checksum of bytes that end with their own
/// checksum is a constant.
constexpr uint32_t mask_crc32c(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }
constexpr uint32_t unmask_crc32c(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

namespace internal {

/// The table-driven fallback of crc32c().
uint32_t crc32c_by_table(const void* data, size_t size, uint32_t seed);

/// Whether crc32c() uses the instruction.
bool crc32c_by_hardware();

}  // namespace internal

}  // namespace tutti
