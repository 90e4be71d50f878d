// SPDX-License-Identifier: Apache-2.0
//
// What a reader may do with bad bytes: throw tutti::Error, but not one that says that the library
// itself is wrong. Anything else leaves the fuzz target and counts as a crash.

#pragma once

#include "tutti/base/error.h"

namespace tutti::test {

template <class Body>
void expect_only_errors(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;
  }
}

}  // namespace tutti::test
