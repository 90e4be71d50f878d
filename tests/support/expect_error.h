// SPDX-License-Identifier: Apache-2.0
//
// EXPECT_TUTTI_ERROR(statement, code, "part", ...) expects that the statement throws a
// tutti::Error with this code, and that its message contains every part.

#pragma once

#include <exception>
#include <initializer_list>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/base/function_ref.h"

namespace tutti::test {

inline ::testing::AssertionResult throws_error(FunctionRef<void()> statement, ErrorCode code,
                                               std::initializer_list<std::string_view> parts) {
  try {
    statement();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() != code) {
      return ::testing::AssertionFailure() << "expected " << to_string(code) << ", got "
                                           << to_string(error.code()) << ": " << text;
    }
    for (const std::string_view part : parts) {
      if (text.find(part) == std::string::npos) {
        return ::testing::AssertionFailure()
               << "the message does not contain \"" << part << "\":\n  " << text;
      }
    }
    return ::testing::AssertionSuccess();
  } catch (const std::exception& other) {
    return ::testing::AssertionFailure() << "not a tutti::Error: " << other.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown, expected " << to_string(code);
}

}  // namespace tutti::test

// NOLINTNEXTLINE(readability-identifier-naming): stands beside GoogleTest's EXPECT_*
#define EXPECT_TUTTI_ERROR(statement, code, ...)                                               \
  EXPECT_TRUE(                                                                                 \
      ::tutti::test::throws_error([&] { static_cast<void>(statement); }, code, {__VA_ARGS__})) \
      << "  statement: " #statement
