// SPDX-License-Identifier: Apache-2.0
//
// ReduceOp and CommunicationOptions.

#include <chrono>
#include <optional>

#include <gtest/gtest.h>

#include "tutti/values/communication_options.h"
#include "tutti/values/reduce_op.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

TEST(ReduceOp, IsReadInAnyCase) {
  EXPECT_EQ(parse_reduce_op("sum"), ReduceOp::kSum);
  EXPECT_EQ(parse_reduce_op("SUM"), ReduceOp::kSum);
  EXPECT_EQ(parse_reduce_op("Mean"), ReduceOp::kMean);
  EXPECT_EQ(parse_reduce_op("MIN"), ReduceOp::kMin);
  EXPECT_EQ(parse_reduce_op("max"), ReduceOp::kMax);
  EXPECT_EQ(parse_reduce_op("ProDuct"), ReduceOp::kProduct);
}

TEST(ReduceOp, OtherTextsAreErrors) {
  for (const char* text : {"", "sums", " sum", "kSum", "average"}) {
    EXPECT_TUTTI_ERROR(parse_reduce_op(text), ErrorCode::kInvalidArgument,
                       message("parse_reduce_op: \"", text, "\" is not an operation"),
                       "sum, mean, min, max or product");
  }
}

TEST(ReduceOp, PrintsAsItsEnumerator) {
  EXPECT_EQ(message(ReduceOp::kSum, ' ', ReduceOp::kMean, ' ', ReduceOp::kMin, ' ', ReduceOp::kMax,
                    ' ', ReduceOp::kProduct),
            "kSum kMean kMin kMax kProduct");
  EXPECT_STREQ(to_string(ReduceOp::kMean), "kMean");
}

TEST(CommunicationOptions, TheDefaultIsOnePackAndTheTimeLimitOfTheStrategy) {
  const CommunicationOptions options;
  EXPECT_EQ(options.bytes_per_pack, 0);
  EXPECT_EQ(options.timeout, std::nullopt);
  EXPECT_NO_THROW(options.validate());
}

TEST(CommunicationOptions, RefusesImpossibleValues) {
  EXPECT_TUTTI_ERROR(CommunicationOptions{.bytes_per_pack = -1}.validate(),
                     ErrorCode::kInvalidArgument, "CommunicationOptions: bytes_per_pack is -1");
  EXPECT_TUTTI_ERROR(CommunicationOptions{.timeout = milliseconds(0)}.validate(),
                     ErrorCode::kInvalidArgument, "CommunicationOptions: timeout is 0 ms",
                     "Leave it unset");
  EXPECT_TUTTI_ERROR(CommunicationOptions{.timeout = milliseconds(-5)}.validate(),
                     ErrorCode::kInvalidArgument, "timeout is -5 ms");
  EXPECT_NO_THROW(
      (CommunicationOptions{.bytes_per_pack = 1, .timeout = milliseconds(1)}.validate()));
}

TEST(CommunicationOptions, MergingTakesWhatTheOtherSets) {
  const CommunicationOptions base{.bytes_per_pack = 10, .timeout = milliseconds(20)};
  EXPECT_EQ(base.merged_with({}), base);
  EXPECT_EQ(base.merged_with({.bytes_per_pack = 5}),
            (CommunicationOptions{.bytes_per_pack = 5, .timeout = milliseconds(20)}));
  EXPECT_EQ(base.merged_with({.timeout = milliseconds(7)}),
            (CommunicationOptions{.bytes_per_pack = 10, .timeout = milliseconds(7)}));
  EXPECT_EQ(CommunicationOptions{}.merged_with(base), base);
}

}  // namespace
}  // namespace tutti
