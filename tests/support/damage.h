// SPDX-License-Identifier: Apache-2.0
//
// Damages bytes in every way a file gets damaged, and checks that a reader either throws
// tutti::Error or reads something.

#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tutti/base/error.h"

namespace tutti::test {

/// Calls read(bytes) with every proper prefix of `whole`. Returns how many were errors.
template <class Read>
size_t truncate_everywhere(std::string_view whole, const Read& read) {
  size_t errors = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    // This is a copy, so that a sanitizer detects a read past the end.
    const std::string part(whole.substr(0, size));
    try {
      read(part);
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
      ++errors;
    }
  }
  return errors;
}

/// Calls read(bytes) with random bytes changed, removed and added. Returns how many were errors.
template <class Read>
size_t damage_at_random(std::string_view whole, int rounds, const Read& read) {
  std::mt19937_64 random(20240611);
  size_t errors = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes(whole);
    const size_t changes = 1 + random() % 4;
    for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
      const size_t at = random() % bytes.size();
      const auto byte = static_cast<char>(random());
      switch (random() % 4) {
        case 0:
          bytes[at] = byte;
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 4);
          break;
        default:
          bytes.insert(at, 1 + random() % 4, byte);
          break;
      }
    }
    try {
      read(bytes);
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
      ++errors;
    }
  }
  return errors;
}

}  // namespace tutti::test
