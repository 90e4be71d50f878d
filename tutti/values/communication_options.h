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
  kAuto,  ///< Shared memory where it can be mapped, otherwise gRPC.
  kHost,  ///< Shared memory only.
  kGrpc,  ///< gRPC only.
  kFast,  ///< Like kAuto, but a backend may use its own all-reduce, whose bits may differ.
};

/// "kAuto", ...
const char* to_string(CommunicationImplementation implementation);
std::ostream& operator<<(std::ostream& out, CommunicationImplementation implementation);

/// How a collective call is carried out. A plain value.
struct CommunicationOptions {
  /// Tensors are reduced in packs; a pack is closed once it holds more bytes than this. 0 means one
  /// pack. Between workers, tensors of 256 KB and more are sent unpacked: packing would copy them.
  int64_t bytes_per_pack = 0;

  /// How long a replica waits for the others; the strategy's limit if not set.
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;

  /// Set it on a strategy of several workers; in the options of a single call it has no effect.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;

  /// Throws kInvalidArgument for a negative size or a timeout that is not positive.
  void validate() const;

  /// These options with every field that `other` sets replaced by it.
  CommunicationOptions merged_with(const CommunicationOptions& other) const;

  bool operator==(const CommunicationOptions&) const = default;
};

}  // namespace tutti
