// SPDX-License-Identifier: Apache-2.0
//
// Mixing of 64-bit words, for hashes and random numbers. Processes compare such hashes, and files
// hold positions of generators that are seeded with them: the results must never change.

#pragma once

#include <cstdint>

namespace tutti {

/// 2^64 divided by the golden ratio: an odd number that spreads consecutive words evenly.
inline constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;

/// What a hash begins with: digits of pi. (With 0, leading zeros would not count.)
inline constexpr uint64_t kHashSeed = 0x243f6a8885a308d3;

/// Adds a word to a hash, without folding: the low bits depend on the low bits of words alone.
constexpr uint64_t multiplied(uint64_t hash, uint64_t word) { return (hash ^ word) * kGoldenRatio; }

/// Adds a word to a hash.
constexpr uint64_t combined(uint64_t hash, uint64_t word) {
  hash = multiplied(hash, word);
  return hash ^ (hash >> 32);
}

/// One step of SplitMix64: well-mixed bits from any number, so that neighbouring numbers give
/// unrelated seeds.
constexpr uint64_t mix_bits(uint64_t x) {
  x += kGoldenRatio;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace tutti
