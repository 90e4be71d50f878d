// SPDX-License-Identifier: Apache-2.0
//
// Hints for one collective call.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>

namespace tutti {

/// How workers on several machines, or in several processes, reach each other.
enum class CommunicationImplementation : uint8_t {
  kAuto,  ///< Shared memory where it can be mapped, else gRPC.
  kHost,  ///< Shared memory only.
  kGrpc,  ///< gRPC only.
  kFast,  ///< As kAuto; a backend may use its own all-reduce, whose bits depend on it.
};

/// "kAuto", ...
const char* to_string(CommunicationImplementation implementation);
std::ostream& operator<<(std::ostream& out, CommunicationImplementation implementation);

struct CommunicationOptions {
  /// Tensors are reduced in packs, which are closed once they hold more bytes than this; 0 means
  /// one pack. Between workers tensors of 256 KB and more travel alone: packing would copy them.
  int64_t bytes_per_pack = 0;

  /// How long a replica waits for the others; the strategy's limit if not set.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;

  /// Of a strategy of several workers; that of a single call has no effect.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;

  /// Throws kInvalidArgument for a negative size or a timeout that is not positive.
  void validate() const;

  /// These options with every field that `other` sets replaced by it.
  CommunicationOptions merged_with(const CommunicationOptions& other) const;

  bool operator==(const CommunicationOptions&) const = default;
};

}  // namespace tutti
