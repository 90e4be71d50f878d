// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/packing.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using ByteSizes = std::vector<int64_t>;
using Packs = std::vector<std::vector<size_t>>;
using Numels = std::vector<int64_t>;
using Splits = std::vector<std::vector<PackPart>>;

// Applies the definition of the rule to one element of the concatenation.
size_t pack_of(int64_t element, int64_t total, int num_packs) {
  const int64_t size = total / num_packs;
  if (size == 0) return static_cast<size_t>(num_packs) - 1;
  return static_cast<size_t>(std::min<int64_t>(element / size, num_packs - 1));
}

TEST(Packing, ClosesAPackOnceItHoldsStrictlyMore) {
  // Exactly the limit is not more: the next tensor still joins.
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 10), 2u);
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 9), 1u);
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 20), 3u);
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 19), 2u);
}

TEST(Packing, PutsATensorLargerThanAPackIntoItsOwnPack) {
  EXPECT_EQ(pack_end(ByteSizes{100, 1, 1}, 0, 10), 1u);
  EXPECT_EQ(pack_end(ByteSizes{1, 100, 1}, 0, 10), 2u) << "it closes the pack that it joins";
}

TEST(Packing, APackMayBeginAnywhereAndEndsWithTheBatch) {
  EXPECT_EQ(pack_end(ByteSizes{5, 5, 5, 5}, 2, 100), 4u);
  EXPECT_EQ(pack_end(ByteSizes{5, 5, 5, 5}, 1, 4), 2u);
  EXPECT_EQ(pack_end(ByteSizes{5, 5}, 2, 4), 2u) << "nothing left";
  EXPECT_EQ(pack_end(ByteSizes{}, 0, 4), 0u);
}

TEST(Packing, PutsEverythingIntoOnePackForZero) {
  EXPECT_EQ(pack_end(ByteSizes{1, 2, 3}, 0, 0), 3u);
  EXPECT_EQ(group_by_size(ByteSizes{1, 2, 3}, 0), (Packs{{2, 1, 0}}));
}

TEST(Packing, EmptyTensorsDoNotFillAPack) {
  EXPECT_EQ(pack_end(ByteSizes{0, 0, 4, 0}, 0, 3), 3u);
  EXPECT_EQ(group_by_size(ByteSizes{0, 0}, 1), (Packs{{1, 0}}));
}

TEST(Packing, FormsPacksFromTheEnd) {
  EXPECT_EQ(group_by_size(ByteSizes{4, 4, 4, 4, 4}, 7), (Packs{{4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(group_by_size(ByteSizes{1, 100, 1}, 10), (Packs{{2, 1}, {0}}));
  EXPECT_EQ(group_by_size(ByteSizes{4, 4, 4}, 1), (Packs{{2}, {1}, {0}}));
  EXPECT_EQ(group_by_size(ByteSizes{}, 7), Packs{});
}

TEST(Packing, PutsEveryTensorIntoOnePack) {
  ByteSizes sizes;
  for (int64_t i = 0; i < 100; ++i) sizes.push_back(i * 37 % 53);
  for (const int64_t limit : {0, 1, 10, 52, 53, 100, 1000000}) {
    size_t next = sizes.size();
    for (const auto& pack : group_by_size(sizes, limit)) {
      ASSERT_FALSE(pack.empty());
      int64_t without_last = 0;
      for (size_t i = 0; i < pack.size(); ++i) {
        EXPECT_EQ(pack[i], --next);
        if (i + 1 < pack.size()) without_last += sizes[pack[i]];
      }
      if (limit > 0) {
        EXPECT_LE(without_last, limit) << "the pack was closed too late";
      }
    }
    EXPECT_EQ(next, 0u);
  }
}

TEST(Packing, RefusesANegativeSize) {
  EXPECT_TUTTI_ERROR(pack_end(ByteSizes{1}, 0, -1), ErrorCode::kInvalidArgument,
                     "bytes_per_pack is -1; it must be 0 or more");
  EXPECT_TUTTI_ERROR(group_by_size(ByteSizes{1}, -8), ErrorCode::kInvalidArgument,
                     "bytes_per_pack is -8");
}

TEST(ConcatAndSplit, GivesTheLastPackTheRemainder) {
  EXPECT_EQ(concat_and_split(Numels{10}, 3), (Splits{{{0, 0, 3}}, {{0, 3, 6}}, {{0, 6, 10}}}));
  EXPECT_EQ(concat_and_split(Numels{3, 4, 4}, 2),
            (Splits{{{0, 0, 3}, {1, 0, 2}}, {{1, 2, 4}, {2, 0, 4}}}));
  EXPECT_EQ(concat_and_split(Numels{3, 4, 4}, 1), (Splits{{{0, 0, 3}, {1, 0, 4}, {2, 0, 4}}}));
}

TEST(ConcatAndSplit, MakesAPackOfEachTensorForZero) {
  EXPECT_EQ(concat_and_split(Numels{3, 1, 7}, 0), (Splits{{{0, 0, 3}}, {{1, 0, 1}}, {{2, 0, 7}}}));
}

TEST(ConcatAndSplit, MakesOnePackOfFewerElementsThanPacks) {
  EXPECT_EQ(concat_and_split(Numels{1, 2}, 4), (Splits{{{0, 0, 1}, {1, 0, 2}}}));
}

TEST(ConcatAndSplit, OmitsPacksAndPartsWithoutElements) {
  EXPECT_EQ(concat_and_split(Numels{}, 0), Splits{});
  EXPECT_EQ(concat_and_split(Numels{}, 2), Splits{});
  EXPECT_EQ(concat_and_split(Numels{0, 0}, 0), Splits{});
  EXPECT_EQ(concat_and_split(Numels{0, 0}, 3), Splits{});
  EXPECT_EQ(concat_and_split(Numels{0, 2, 0, 2, 0}, 0), (Splits{{{1, 0, 2}}, {{3, 0, 2}}}));
  EXPECT_EQ(concat_and_split(Numels{0, 2, 0, 2, 0}, 2), (Splits{{{1, 0, 2}}, {{3, 0, 2}}}));
}

TEST(ConcatAndSplit, PutsEveryElementIntoThePackOfTheDefinition) {
  for (const Numels& numels : {Numels{1}, Numels{5, 0, 1, 1, 8}, Numels{0, 13, 2}, Numels{7, 7, 7},
                               Numels{1, 1, 1, 1, 1, 1, 1}, Numels{64, 3}}) {
    int64_t total = 0;
    for (const int64_t n : numels) total += n;
    for (int num_packs = 1; num_packs <= 9; ++num_packs) {
      Splits expected(static_cast<size_t>(num_packs));
      int64_t element = 0;
      for (size_t t = 0; t < numels.size(); ++t) {
        for (int64_t i = 0; i < numels[t]; ++i, ++element) {
          auto& pack = expected[pack_of(element, total, num_packs)];
          if (pack.empty() || pack.back().tensor != t) pack.push_back({t, i, i});
          pack.back().end = i + 1;
        }
      }
      std::erase_if(expected, [](const auto& pack) { return pack.empty(); });
      EXPECT_EQ(concat_and_split(numels, num_packs), expected) << num_packs << " packs";
    }
  }
}

TEST(ConcatAndSplit, RefusesANegativeNumber) {
  EXPECT_TUTTI_ERROR(concat_and_split(Numels{1}, -2), ErrorCode::kInvalidArgument,
                     "num_packs is -2; it must be 0 or more");
}

}  // namespace
}  // namespace tutti
