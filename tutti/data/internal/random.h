// SPDX-License-Identifier: Apache-2.0
//
// Random numbers of pipelines: small state, the same on every machine.

#pragma once

#include <bit>
#include <cstdint>
#include <random>

#include "tutti/base/hash.h"
#include "tutti/nest/element_codec.h"

namespace tutti::data {

/// A seed for nodes without one, different at every call.
inline uint64_t random_seed() {
  std::random_device source;
  return (uint64_t{source()} << 32) | source();
}

/// xoshiro256**, seeded by SplitMix64. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : words_) word = seed = mix_bits(seed);
  }

  uint64_t next() {
    const uint64_t result = std::rotl(words_[1] * 5, 7) * 9;
    const uint64_t shifted = words_[1] << 17;
    words_[2] ^= words_[0];
    words_[3] ^= words_[1];
    words_[1] ^= words_[2];
    words_[0] ^= words_[3];
    words_[2] ^= shifted;
    words_[3] = std::rotl(words_[3], 45);
    return result;
  }

  /// Uniform in [0, limit), limit > 0.
  uint64_t below(uint64_t limit) {
    // The high half of a product is uniform once the few low halves that would bias it are redrawn.
    while (true) {
      const __uint128_t product = static_cast<__uint128_t>(next()) * limit;
      const auto low = static_cast<uint64_t>(product);
      if (low >= limit || low >= (-limit) % limit) return static_cast<uint64_t>(product >> 64);
    }
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  void save(StateWriter& state) const {
    for (const uint64_t word : words_) state.number(static_cast<int64_t>(word));
  }
  void restore(StateReader& state) {
    for (uint64_t& word : words_) word = static_cast<uint64_t>(state.number());
  }

 private:
  uint64_t words_[4];
};

}  // namespace tutti::data
