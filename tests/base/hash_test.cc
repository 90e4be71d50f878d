// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/hash.h"

#include <gtest/gtest.h>

namespace tutti::hash_test {

// Files hold positions of generators, and processes compare hashes: a change of these numbers is a
// change of formats.
TEST(Hash, NeverChanges) {
  EXPECT_EQ(mix_bits(0), 0xe220a8397b1dcdaf) << "the first number of SplitMix64 with seed 0";
  EXPECT_EQ(mix_bits(1), 0x910a2dec89025cc1);
  EXPECT_EQ(multiplied(kHashSeed, 5), 0xd288e916a683618e);
  EXPECT_EQ(combined(combined(kHashSeed, 1), 2), 0x7810b8a713fbf70f);
}

TEST(Hash, DependsOnTheOrderAndOnLeadingZeros) {
  EXPECT_NE(combined(combined(kHashSeed, 1), 2), combined(combined(kHashSeed, 2), 1));
  EXPECT_NE(combined(kHashSeed, 0), kHashSeed);
  EXPECT_NE(combined(combined(kHashSeed, 0), 7), combined(kHashSeed, 7));
}

}  // namespace tutti::hash_test
