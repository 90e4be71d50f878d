// SPDX-License-Identifier: Apache-2.0
//
// Loops over flat memory that the optimizer needs in addition to the update rules.

#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace tutti::internal {

/// Converts elements of a floating-point dtype to another, rounding to nearest.
void convert(at::ScalarType from_dtype, const void* from, at::ScalarType to_dtype, void* to,
             int64_t count);

/// Multiplies elements, rounding once.
void scale(at::ScalarType dtype, void* data, int64_t count, double factor);

/// Whether two pieces of memory are equal; fast for memory that is in a cache.
bool same_bytes(const void* a, const void* b, size_t bytes);

/// Sets each copy in `state` that no longer rounds to its parameter to that parameter.
void take_written(at::ScalarType parameter_dtype, const void* parameter, at::ScalarType state_dtype,
                  void* state, int64_t count);

struct SquareSum {
  double sum = 0;
  bool finite = true;  ///< Whether every element is.
};

/// The sum of squares in float64. Its order depends on `count` alone.
SquareSum square_sum(at::ScalarType dtype, const void* data, int64_t count);

/// A 64-bit hash, which almost certainly differs when any byte differs.
uint64_t hash_bytes(const void* data, size_t bytes);

}  // namespace tutti::internal
