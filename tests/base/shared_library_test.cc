// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/shared_library.h"

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::shared_library_test {

TEST(SharedLibrary, LoadsTheFirstThatExists) {
  std::string reasons;
  const auto library = SharedLibrary::open_first(
      std::vector<std::string>{"libtutti_does_not_exist.so", "libm.so.6", "libc.so.6"}, &reasons);
  ASSERT_TRUE(library.has_value()) << reasons;
  EXPECT_EQ(library->path(), "libm.so.6");
  EXPECT_EQ(reasons, "");
  auto* const root = library->find<double(double)>("sqrt");
  ASSERT_NE(root, nullptr);
  EXPECT_EQ(root(16.0), 4.0);
  EXPECT_EQ(library->find<double(double)>("tutti_does_not_exist"), nullptr);
}

TEST(SharedLibrary, SaysWhyNoneCanBeLoaded) {
  std::string reasons;
  EXPECT_FALSE(
      SharedLibrary::open_first(std::vector<std::string>{"liba_none.so", "libb_none.so"}, &reasons)
          .has_value());
  EXPECT_NE(reasons.find("\"liba_none.so\" (liba_none.so: cannot open"), std::string::npos)
      << reasons;
  EXPECT_NE(reasons.find("; \"libb_none.so\" ("), std::string::npos) << reasons;
}

TEST(SharedLibrary, FindsFunctionsOfTheProgram) {
  const SharedLibrary program = SharedLibrary::of_program();
  auto* const absolute = program.find<int(int)>("abs");
  ASSERT_NE(absolute, nullptr);
  EXPECT_EQ(absolute(-3), 3);
  EXPECT_EQ(program.find<void()>("tutti_does_not_exist"), nullptr);
}

}  // namespace tutti::shared_library_test
