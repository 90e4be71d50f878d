// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/error.h"

#include <stdexcept>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

TEST(Error, CarriesItsCodeAndText) {
  const Error error(ErrorCode::kNotFound, "Strategy: no such device.");
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_STREQ(error.what(), "Strategy: no such device.");
}

TEST(Error, IsCaughtAsRuntimeError) {
  static_assert(std::is_base_of_v<std::runtime_error, Error>);
  try {
    throw Error(ErrorCode::kCancelled, "stopped");
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "stopped");
    return;
  }
  FAIL();
}

TEST(Error, EveryCodeHasTheNameOfItsEnumerator) {
  EXPECT_STREQ(to_string(ErrorCode::kInvalidArgument), "kInvalidArgument");
  EXPECT_STREQ(to_string(ErrorCode::kFailedPrecondition), "kFailedPrecondition");
  EXPECT_STREQ(to_string(ErrorCode::kNotFound), "kNotFound");
  EXPECT_STREQ(to_string(ErrorCode::kUnimplemented), "kUnimplemented");
  EXPECT_STREQ(to_string(ErrorCode::kUnavailable), "kUnavailable");
  EXPECT_STREQ(to_string(ErrorCode::kDeadlineExceeded), "kDeadlineExceeded");
  EXPECT_STREQ(to_string(ErrorCode::kCancelled), "kCancelled");
  EXPECT_STREQ(to_string(ErrorCode::kDataLoss), "kDataLoss");
  EXPECT_STREQ(to_string(ErrorCode::kInternal), "kInternal");
}

TEST(Message, JoinsItsPartsAsTheyPrint) {
  EXPECT_EQ(message("replica ", 3, " of ", size_t{4}, ": ", 0.5, ' ', std::string("done")),
            "replica 3 of 4: 0.5 done");
  EXPECT_EQ(message(), "");
}

TEST(Check, PassesSilentlyAndEvaluatesOnce) {
  int calls = 0;
  TUTTI_CHECK(++calls == 1);
  EXPECT_EQ(calls, 1);
}

TEST(Check, NamesTheConditionAndTheLine) {
  const auto broken = [] { TUTTI_CHECK(1 + 1 == 3); };
  EXPECT_TUTTI_ERROR(broken(), ErrorCode::kInternal, "\"1 + 1 == 3\"",
                     "error_test.cc:", "defect of the library");
}

}  // namespace
}  // namespace tutti
