// SPDX-License-Identifier: Apache-2.0
//
// Draws the number that distinguishes one group from another.

#pragma once

#include <cstdint>
#include <random>

namespace tutti {

/// Unpredictable, and never 0.
inline uint64_t random_epoch() {
  std::random_device device;
  const uint64_t number = uint64_t{device()} << 32 | device();
  return number == 0 ? 1 : number;
}

}  // namespace tutti
