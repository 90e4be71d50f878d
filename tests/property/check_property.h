// SPDX-License-Identifier: Apache-2.0
//
// Runs a property over random cases. The seed is fixed, so that every run tries the same cases;
// TUTTI_PROPERTY_SEED sets a different one, and TUTTI_PROPERTY_FACTOR multiplies the number of
// cases.

#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace tutti::property {

inline uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoull(text, nullptr, 10);
}

/// Calls `property`, which draws its arguments from rapidcheck, `cases` times. A failure fails the
/// running test and tells how to reproduce it.
template <class F>
void check_property(int cases, const F& property) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  rc::detail::TestMetadata metadata;
  metadata.id = std::string(test->test_suite_name()) + "/" + test->name();
  metadata.description = test->name();
  rc::detail::TestParams params;
  params.seed = number_from_environment("TUTTI_PROPERTY_SEED", 20240229);
  params.maxSuccess = cases * static_cast<int>(number_from_environment("TUTTI_PROPERTY_FACTOR", 1));
  const auto result = rc::detail::checkTestable(property, metadata, params);
  if (result.template is<rc::detail::SuccessResult>()) return;
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  FAIL() << text.str() << "\nThe seed is " << params.seed << " (TUTTI_PROPERTY_SEED).";
}

}  // namespace tutti::property
