// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/packing.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using ByteSizes = std::vector<int64_t>;
using Packs = std::vector<std::vector<size_t>>;

TEST(Packing, APackIsClosedOnceItHoldsStrictlyMore) {
  // Exactly the limit is not more: the next tensor still joins.
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 10), 2u);
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 9), 1u);
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 20), 3u);
  EXPECT_EQ(pack_end(ByteSizes{10, 10, 10}, 0, 19), 2u);
}

TEST(Packing, ATensorLargerThanAPackIsAPackOfItsOwn) {
  EXPECT_EQ(pack_end(ByteSizes{100, 1, 1}, 0, 10), 1u);
  EXPECT_EQ(pack_end(ByteSizes{1, 100, 1}, 0, 10), 2u) << "it closes the pack it comes into";
}

TEST(Packing, APackMayBeginAnywhereAndEndsWithTheBatch) {
  EXPECT_EQ(pack_end(ByteSizes{5, 5, 5, 5}, 2, 100), 4u);
  EXPECT_EQ(pack_end(ByteSizes{5, 5, 5, 5}, 1, 4), 2u);
  EXPECT_EQ(pack_end(ByteSizes{5, 5}, 2, 4), 2u) << "nothing left";
  EXPECT_EQ(pack_end(ByteSizes{}, 0, 4), 0u);
}

TEST(Packing, ZeroIsOnePack) {
  EXPECT_EQ(pack_end(ByteSizes{1, 2, 3}, 0, 0), 3u);
  EXPECT_EQ(group_by_size(ByteSizes{1, 2, 3}, 0), (Packs{{2, 1, 0}}));
}

TEST(Packing, EmptyTensorsDoNotFillAPack) {
  EXPECT_EQ(pack_end(ByteSizes{0, 0, 4, 0}, 0, 3), 3u);
  EXPECT_EQ(group_by_size(ByteSizes{0, 0}, 1), (Packs{{1, 0}}));
}

TEST(Packing, PacksAreFormedFromTheEnd) {
  EXPECT_EQ(group_by_size(ByteSizes{4, 4, 4, 4, 4}, 7), (Packs{{4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(group_by_size(ByteSizes{1, 100, 1}, 10), (Packs{{2, 1}, {0}}));
  EXPECT_EQ(group_by_size(ByteSizes{4, 4, 4}, 1), (Packs{{2}, {1}, {0}}));
  EXPECT_EQ(group_by_size(ByteSizes{}, 7), Packs{});
}

TEST(Packing, EveryTensorIsInOnePack) {
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

TEST(Packing, ANegativeSizeIsAnError) {
  EXPECT_TUTTI_ERROR(pack_end(ByteSizes{1}, 0, -1), ErrorCode::kInvalidArgument,
                     "bytes_per_pack is -1; it must be 0 or more");
  EXPECT_TUTTI_ERROR(group_by_size(ByteSizes{1}, -8), ErrorCode::kInvalidArgument,
                     "bytes_per_pack is -8");
}

}  // namespace
}  // namespace tutti
