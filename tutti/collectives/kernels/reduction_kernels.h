// SPDX-License-Identifier: Apache-2.0
//
// Element-wise kernels that combine up to four inputs in one pass over memory.
// Compiled once for every x86-64 and once for AVX2; both give the same bits.

#pragma once

#include <cstdint>

namespace tutti::internal {

inline constexpr int kMaxFanIn = 4;

/// What a kernel reads or writes. Integers are added and multiplied as unsigned
/// (wrapping, the same bits); complex numbers are added as pairs of floats.
enum class Element : uint8_t {
  kF16,
  kBF16,
  kF32,
  kF64,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kC64,
  kC128,
};

enum class Combine : uint8_t { kSum, kSumDivide, kMin, kMax, kProduct };

/// out[j][i] = tree(in[0][i], ..., in[fan_in - 1][i]), for one or all outputs;
/// kSumDivide divides by `divisor` before it rounds.
using Kernel = void (*)(const void* const* in, void* const* out, int64_t count, double divisor);

struct KernelKey {
  Element in;   ///< 16-bit floats may be read and written as such,
  Element out;  ///< or be kept as kF32 between two levels of the tree.
  Combine combine;
  int fan_in;      ///< 1 ... kMaxFanIn
  bool write_all;  ///< fan_in outputs instead of one; sums only.
};

/// Returns the kernel for the key, or null if there is none.
Kernel find_kernel_baseline(const KernelKey& key);
#if defined(__x86_64__)
Kernel find_kernel_avx2(const KernelKey& key);
#endif

}  // namespace tutti::internal
