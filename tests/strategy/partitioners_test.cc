// SPDX-License-Identifier: Apache-2.0
//
// How partitioners divide shapes: the documents' examples, the formulas against plain loops, and
// what is refused.

#include "tutti/strategy/parameter_server/partitioners.h"

#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti::partitioners_test {

using Parts = std::vector<int64_t>;

TEST(Partitioners, DivideAsTheDocumentsShow) {
  const FixedShardsPartitioner fixed(2);
  EXPECT_EQ(fixed({10, 3}, at::kFloat, 0), (Parts{2, 1}));
  EXPECT_EQ(fixed({10, 3}, at::kFloat, 1), (Parts{1, 2}));
  const MinSizePartitioner four({.min_shard_bytes = 24, .max_shards = 4});
  EXPECT_EQ(four({10, 3}, at::kFloat, 0), (Parts{4, 1}));
  const MinSizePartitioner eight({.min_shard_bytes = 24, .max_shards = 8});
  EXPECT_EQ(eight({10, 3}, at::kFloat), (Parts{5, 1}));
}

TEST(Partitioners, MakeAtMostOnePartPerRow) {
  EXPECT_EQ(FixedShardsPartitioner(8)({3, 5}, at::kFloat), (Parts{3, 1}));
  EXPECT_EQ(MinSizePartitioner({.min_shard_bytes = 1, .max_shards = 99})({3, 5}, at::kFloat),
            (Parts{3, 1}));
  EXPECT_EQ(MaxSizePartitioner(1)({3, 5}, at::kFloat), (Parts{3, 1}));
}

TEST(Partitioners, MakeOnePartOfWhatCannotBeDivided) {
  for (const Parts& shape : {Parts{0, 4}, Parts{1, 4}}) {
    EXPECT_EQ(FixedShardsPartitioner(3)(shape, at::kFloat), (Parts{1, 1}));
    EXPECT_EQ(MaxSizePartitioner(4)(shape, at::kFloat), (Parts{1, 1}));
  }
  EXPECT_EQ(MaxSizePartitioner(4)({8, 0}, at::kFloat), (Parts{1, 1}));
  EXPECT_EQ(MinSizePartitioner({.max_shards = 3})({8, 0}, at::kFloat), (Parts{1, 1}));
}

TEST(Partitioners, CountAxesFromTheEnd) {
  EXPECT_EQ(FixedShardsPartitioner(2)({4, 6, 8}, at::kFloat, -1), (Parts{1, 1, 2}));
  EXPECT_EQ(FixedShardsPartitioner(2)({4, 6, 8}, at::kFloat, -3), (Parts{2, 1, 1}));
}

TEST(Partitioners, KeepPartsWithinTheLargestSize) {
  for (int64_t rows = 1; rows < 40; ++rows) {
    for (int64_t limit = 1; limit < 200; limit += 7) {
      const int64_t shards = MaxSizePartitioner(limit)({rows, 3}, at::kDouble)[0];
      // The div rule: the largest part has this many rows of 24 bytes.
      const int64_t largest = (rows + shards - 1) / shards;
      EXPECT_TRUE(largest * 24 <= limit || shards == rows) << rows << " rows, " << limit;
      if (shards > 1) {
        const int64_t larger = (rows + shards - 2) / (shards - 1);
        EXPECT_GT(larger * 24, limit) << rows << " rows, " << limit << ": too many parts";
      }
    }
  }
  EXPECT_EQ(MaxSizePartitioner(24, {.max_shards = 3})({10, 3}, at::kDouble), (Parts{3, 1}));
}

TEST(Partitioners, CountBytesOfTheDtype) {
  const MinSizePartitioner partitioner({.min_shard_bytes = 16, .max_shards = 100});
  EXPECT_EQ(partitioner({16}, at::kBool), Parts{1});
  EXPECT_EQ(partitioner({16}, at::kHalf), Parts{2});
  EXPECT_EQ(partitioner({16}, at::kDouble), Parts{8});
  // 17 pieces, of which the last is a single byte.
  EXPECT_EQ(partitioner({257}, at::kBool), Parts{17});
}

TEST(Partitioners, RefuseWhatTheyCannotDivide) {
  const FixedShardsPartitioner fixed(2);
  EXPECT_TUTTI_ERROR(fixed({10, 3}, at::kFloat, 2), ErrorCode::kInvalidArgument,
                     "axis 2 is out of range for the shape [10, 3], which has 2 axes");
  EXPECT_TUTTI_ERROR(fixed({10, 3}, at::kFloat, -3), ErrorCode::kInvalidArgument, "axis -3");
  EXPECT_TUTTI_ERROR(fixed({}, at::kFloat), ErrorCode::kInvalidArgument, "0 axes");
  EXPECT_TUTTI_ERROR(fixed({-1, 3}, at::kFloat), ErrorCode::kInvalidArgument, "not fully defined");
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_TUTTI_ERROR(fixed({most, 3}, at::kFloat), ErrorCode::kInvalidArgument, "64 bits");
}

TEST(Partitioners, RefuseNumbersBelowOne) {
  EXPECT_TUTTI_ERROR(FixedShardsPartitioner(0), ErrorCode::kInvalidArgument,
                     "FixedShardsPartitioner: num_shards is 0; it must be 1 or more");
  EXPECT_TUTTI_ERROR(MinSizePartitioner({.min_shard_bytes = 0}), ErrorCode::kInvalidArgument,
                     "min_shard_bytes is 0");
  EXPECT_TUTTI_ERROR(MinSizePartitioner({.max_shards = -1}), ErrorCode::kInvalidArgument,
                     "max_shards is -1");
  EXPECT_TUTTI_ERROR(MinSizePartitioner({.bytes_per_string = 0}), ErrorCode::kInvalidArgument,
                     "bytes_per_string is 0");
  EXPECT_TUTTI_ERROR(MaxSizePartitioner(0), ErrorCode::kInvalidArgument, "max_shard_bytes is 0");
  EXPECT_TUTTI_ERROR(MaxSizePartitioner(1, {.max_shards = 0}), ErrorCode::kInvalidArgument,
                     "max_shards is 0");
}

class Halves final : public Partitioner {
  int64_t num_shards(const Rows& rows) const override { return rows.count / 2; }
};

TEST(Partitioners, MayBeOfTheUser) {
  EXPECT_EQ(Halves()({9, 2}, at::kFloat), (Parts{4, 1}));
  EXPECT_EQ(Halves()({9, 2}, at::kFloat, 1), (Parts{1, 1}));
}

}  // namespace tutti::partitioners_test
