// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that nobody can guess, and how they are written as text.

#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tutti::rpc::internal {

/// Fills `bytes` with cryptographically secure random numbers of the kernel.
void fill_random(std::span<std::byte> bytes);
std::string to_hex(std::span<const std::byte> bytes);

}  // namespace tutti::rpc::internal
