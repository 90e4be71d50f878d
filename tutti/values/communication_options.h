// SPDX-License-Identifier: Apache-2.0
//
// Hints for one collective call.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace tutti {

struct CommunicationOptions {
  /// Tensors are reduced in packs of about this many bytes; 0 means one pack.
  int64_t bytes_per_pack = 0;

  /// How long a replica waits for the others; the strategy's limit if not set.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;

  /// Throws kInvalidArgument for a negative size or a timeout that is not positive.
  void validate() const;

  /// These options with every field that `other` sets replaced by it.
  CommunicationOptions merged_with(const CommunicationOptions& other) const;

  bool operator==(const CommunicationOptions&) const = default;
};

}  // namespace tutti
