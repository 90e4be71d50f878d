// SPDX-License-Identifier: Apache-2.0
//
// Lets tests wait for a condition, never for a time.

#pragma once

#include <chrono>
#include <thread>

namespace tutti::test {

/// Waits until the condition holds; false if it does not within 20 seconds.
template <class Condition>
bool eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace tutti::test
