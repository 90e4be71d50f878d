// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/joined.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::joined_test {

struct Named {
  std::string name;
  std::string upper() const { return name + "!"; }
};

TEST(Joined, SeparatesElements) {
  EXPECT_EQ(joined(std::vector<int>{}), "");
  EXPECT_EQ(joined(std::vector<int>{1}), "1");
  EXPECT_EQ(joined(std::vector<int>{1, 2, 3}), "1, 2, 3");
  EXPECT_EQ(joined(std::array{"a", "b"}, "; "), "a; b");
  EXPECT_EQ(joined(std::vector<bool>{true, false}), "1, 0");
}

TEST(Joined, PrintsWhatTheProjectionReturns) {
  const std::vector<Named> all = {{"a"}, {"b"}};
  EXPECT_EQ(joined(all, ", ", &Named::name), "a, b");
  EXPECT_EQ(joined(all, ", ", &Named::upper), "a!, b!");
  EXPECT_EQ(joined(all, "+", [](const Named& each) { return each.name.size(); }), "1+1");
}

TEST(JoinedWithAnd, SaysAndBeforeTheLastElement) {
  EXPECT_EQ(joined_with_and(std::vector<int>{}), "");
  EXPECT_EQ(joined_with_and(std::vector<int>{4}), "4");
  EXPECT_EQ(joined_with_and(std::vector<int>{4, 5}), "4 and 5");
  EXPECT_EQ(joined_with_and(std::vector<Named>{{"a"}, {"b"}, {"c"}}, &Named::name), "a, b and c");
}

}  // namespace tutti::joined_test
