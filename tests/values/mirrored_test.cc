// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/mirrored.h"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti {
namespace {

TEST(Mirrored, HoldsOneCopyForEachReplica) {
  const Mirrored<int> value(std::vector{7, 7, 7});
  EXPECT_EQ(value.size(), 3u);
  int sum = 0;
  for (const int each : value) sum += each;
  EXPECT_EQ(sum, 21);
}

TEST(Mirrored, OutsideARunTheValueIsTheFirstComponent) {
  const Mirrored<std::string> value(std::vector<std::string>{"first", "second"});
  EXPECT_EQ(value.value(), "first");
  EXPECT_EQ(value[1], "second");
}

TEST(Mirrored, AComponentOfATemporaryIsAValue) {
  using M = Mirrored<std::string>;
  static_assert(std::is_same_v<decltype(std::declval<M>()[0]), std::string>);
  static_assert(std::is_same_v<decltype(std::declval<M>().value()), std::string>);
  static_assert(std::is_same_v<decltype(std::declval<M&>()[0]), const std::string&>);
  static_assert(std::is_same_v<decltype(std::declval<const M&>().value()), const std::string&>);
  EXPECT_EQ(M(std::vector<std::string>{"a"}).value(), "a");
  EXPECT_EQ(M(std::vector<std::string>{"a", "b"})[1], "b");
}

TEST(Mirrored, RefusesToBeEmptyAndIndicesOutOfRange) {
  EXPECT_TUTTI_ERROR(Mirrored<int>(std::vector<int>{}), ErrorCode::kInvalidArgument,
                     "Mirrored: there must be at least one component.");
  const Mirrored<int> value(std::vector{1, 1});
  EXPECT_TUTTI_ERROR(value[2], ErrorCode::kInvalidArgument,
                     "Mirrored: there is no component 2; this value has 2");
  EXPECT_TUTTI_ERROR(Mirrored<int>(value)[3], ErrorCode::kInvalidArgument, "component 3");
}

TEST(Mirrored, PrintsItsComponents) {
  const Mirrored<at::Tensor> value(std::vector{test::tensor({5.f}), test::tensor({5.f})});
  EXPECT_EQ(message(value),
            "Mirrored:{\n"
            "  0: Tensor([5.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([5.], shape=(1,), dtype=float32)\n"
            "}");
}

}  // namespace
}  // namespace tutti
