// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tutti {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // Bit-reflected.

using CrcTable = std::array<uint32_t, 256>;

// Table k holds the effect of one byte followed by k zero bytes.
constexpr std::array<CrcTable, 8> make_byte_tables() {
  std::array<CrcTable, 8> tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr std::array<CrcTable, 8> kByteTables = make_byte_tables();

uint64_t load_little_endian(const unsigned char* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

#if defined(__x86_64__)

// The instruction has a latency of three cycles and a throughput of one per cycle, so three
// independent streams keep it busy. To join their checksums, each is advanced over the zero bytes
// that stand for the streams after it; that is linear, so one table per byte of the checksum
// suffices.
using ShiftTables = std::array<CrcTable, 4>;

constexpr uint32_t apply_matrix(const std::array<uint32_t, 32>& columns, uint32_t bits) {
  uint32_t sum = 0;
  for (size_t i = 0; bits != 0; ++i, bits >>= 1) {
    if ((bits & 1) != 0) sum ^= columns[i];
  }
  return sum;
}

constexpr ShiftTables make_shift_tables(int log2_bytes) {
  std::array<uint32_t, 32> columns = {};
  for (size_t i = 0; i < 32; ++i) {
    const uint32_t bit = 1u << i;
    columns[i] = (bit >> 8) ^ kByteTables[0][bit & 0xff];
  }
  for (int doubling = 0; doubling < log2_bytes; ++doubling) {
    std::array<uint32_t, 32> squared = {};
    for (size_t i = 0; i < 32; ++i) squared[i] = apply_matrix(columns, columns[i]);
    columns = squared;
  }
  ShiftTables tables = {};
  for (size_t k = 0; k < 4; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = apply_matrix(columns, byte << (8 * k));
    }
  }
  return tables;
}

constexpr size_t kLongStream = 4096;
constexpr size_t kShortStream = 256;
constexpr ShiftTables kLongShift = make_shift_tables(std::countr_zero(kLongStream));
constexpr ShiftTables kShortShift = make_shift_tables(std::countr_zero(kShortStream));

uint32_t shift_crc(const ShiftTables& tables, uint32_t crc) {
  return tables[0][crc & 0xff] ^ tables[1][(crc >> 8) & 0xff] ^ tables[2][(crc >> 16) & 0xff] ^
         tables[3][crc >> 24];
}

template <size_t stream>
__attribute__((target("sse4.2"))) uint32_t crc_of_three_streams(const unsigned char*& at,
                                                                size_t& size, uint32_t crc,
                                                                const ShiftTables& shift) {
  while (size >= 3 * stream) {
    uint64_t a = crc;
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < stream; i += 8) {
      a = _mm_crc32_u64(a, load_little_endian(at + i));
      b = _mm_crc32_u64(b, load_little_endian(at + stream + i));
      c = _mm_crc32_u64(c, load_little_endian(at + 2 * stream + i));
    }
    crc = shift_crc(shift, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = shift_crc(shift, crc) ^ static_cast<uint32_t>(c);
    at += 3 * stream;
    size -= 3 * stream;
  }
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(const void* data, size_t size,
                                                              uint32_t seed) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  crc = crc_of_three_streams<kLongStream>(at, size, crc, kLongShift);
  crc = crc_of_three_streams<kShortStream>(at, size, crc, kShortShift);
  for (; size >= 8; size -= 8, at += 8) {
    crc = static_cast<uint32_t>(_mm_crc32_u64(crc, load_little_endian(at)));
  }
  for (; size > 0; --size, ++at) crc = _mm_crc32_u8(crc, *at);
  return ~crc;
}

bool has_crc_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}

#endif

}  // namespace

namespace internal {

uint32_t crc32c_by_table(const void* data, size_t size, uint32_t seed) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  for (; size >= 8; size -= 8, at += 8) {
    const uint64_t word = load_little_endian(at) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kByteTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; --size, ++at) crc = (crc >> 8) ^ kByteTables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

bool crc32c_by_hardware() {
#if defined(__x86_64__)
  return has_crc_instruction();
#else
  return false;
#endif
}

}  // namespace internal

uint32_t crc32c(const void* data, size_t size, uint32_t seed) {
#if defined(__x86_64__)
  if (has_crc_instruction()) return crc_by_instruction(data, size, seed);
#endif
  return internal::crc32c_by_table(data, size, seed);
}

}  // namespace tutti
