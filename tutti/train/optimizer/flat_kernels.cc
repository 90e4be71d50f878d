// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/flat_kernels.h"

#include <array>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "tutti/base/error.h"
#include "tutti/base/hash.h"

namespace tutti::internal {
namespace {

template <class From, class To>
void convert_loop(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

template <class F>
void with_type(at::ScalarType dtype, const F& fn) {
  switch (dtype) {
    case at::kFloat:
      return fn(float{});
    case at::kDouble:
      return fn(double{});
    case at::kHalf:
      return fn(c10::Half{});
    case at::kBFloat16:
      return fn(c10::BFloat16{});
    default:
      TUTTI_CHECK(false && "a floating-point dtype");
  }
}

constexpr int64_t kLanes = 8;

template <class T>
SquareSum square_sum_loop(const T* data, int64_t count) {
  std::array<double, kLanes> sums = {};
  std::array<double, kLanes> zeros = {};  // x * 0 is NaN unless x is finite
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(data[i + lane]);
      sums[lane] += x * x;
      zeros[lane] += x * 0.0;
    }
  }
  for (; i < count; ++i) {
    const auto x = static_cast<double>(data[i]);
    sums[0] += x * x;
    zeros[0] += x * 0.0;
  }
  SquareSum result;
  double zero = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    result.sum += sums[lane];
    zero += zeros[lane];
  }
  result.finite = zero == 0;
  return result;
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = multiplied(hash, word);
  return hash ^ (hash >> 29);
}

}  // namespace

void convert(at::ScalarType from_dtype, const void* from, at::ScalarType to_dtype, void* to,
             int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<size_t>(count) * c10::elementSize(to_dtype));
    return;
  }
  with_type(from_dtype, [&](auto source) {
    with_type(to_dtype, [&](auto target) {
      convert_loop(static_cast<const decltype(source)*>(from), static_cast<decltype(target)*>(to),
                   count);
    });
  });
}

void scale(at::ScalarType dtype, void* data, int64_t count, double factor) {
  with_type(dtype, [&](auto element) {
    using T = decltype(element);
    auto* const values = static_cast<T*>(data);
    const T by = static_cast<T>(factor);
    for (int64_t i = 0; i < count; ++i) values[i] = values[i] * by;
  });
}

bool same_bytes(const void* a, const void* b, size_t bytes) {
  const auto* const x = static_cast<const unsigned char*>(a);
  const auto* const y = static_cast<const unsigned char*>(b);
  uint64_t difference = 0;
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
    uint64_t p;
    uint64_t q;
    std::memcpy(&p, x + i, sizeof(p));
    std::memcpy(&q, y + i, sizeof(q));
    difference |= p ^ q;
  }
  for (; i < bytes; ++i) difference |= static_cast<uint64_t>(x[i] ^ y[i]);
  return difference == 0;
}

void take_written(at::ScalarType parameter_dtype, const void* parameter, at::ScalarType state_dtype,
                  void* state, int64_t count) {
  with_type(parameter_dtype, [&](auto narrow) {
    with_type(state_dtype, [&](auto wide) {
      using P = decltype(narrow);
      using S = decltype(wide);
      const auto* const values = static_cast<const P*>(parameter);
      auto* const copies = static_cast<S*>(state);
      for (int64_t i = 0; i < count; ++i) {
        const P rounded = static_cast<P>(copies[i]);
        // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the bits are what counts
        copies[i] = std::memcmp(&rounded, &values[i], sizeof(P)) == 0 ? copies[i]
                                                                      : static_cast<S>(values[i]);
      }
    });
  });
}

SquareSum square_sum(at::ScalarType dtype, const void* data, int64_t count) {
  SquareSum result;
  with_type(dtype, [&](auto element) {
    result = square_sum_loop(static_cast<const decltype(element)*>(data), count);
  });
  return result;
}

uint64_t hash_bytes(const void* data, size_t bytes) {
  const auto* const begin = static_cast<const unsigned char*>(data);
  std::array<uint64_t, 4> lanes = {1, 2, 3, 4};
  size_t i = 0;
  for (; i + sizeof(lanes) <= bytes; i += sizeof(lanes)) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), begin + i, sizeof(words));
    for (size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  uint64_t hash = bytes;
  for (const uint64_t lane : lanes) hash = mix(hash, lane);
  for (; i < bytes; ++i) hash = mix(hash, begin[i]);
  return hash;
}

}  // namespace tutti::internal
