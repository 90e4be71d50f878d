// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes of one machine share: a memfd of fixed size, which its owner writes and
// others map read-only. local_socket.h passes the descriptor on.

#pragma once

#include <cstddef>
#include <string>

#include "tutti/rpc/file_descriptor.h"

namespace tutti::rpc {

/// A mapping of such memory; it ends with the object. The object may be read by several threads;
/// what synchronises the bytes is up to the user.
class SealedMemory {
 public:
  /// Makes memory of this process, all zeros and writable. Pages that are not touched cost nothing.
  /// Throws kUnavailable when the system does not provide it.
  static SealedMemory create(size_t bytes);

  /// Maps memory of a peer read-only; the descriptor is not kept. Throws kFailedPrecondition unless
  /// it has exactly `bytes` and can never shrink, since reading beyond its end would kill this
  /// process. `peer` is its name in errors.
  static SealedMemory map(int descriptor, size_t bytes, const std::string& peer);

  SealedMemory(SealedMemory&& other) noexcept;
  SealedMemory& operator=(SealedMemory&&) = delete;
  ~SealedMemory();

  /// What peers need to map it; -1 for memory of a peer.
  int descriptor() const { return descriptor_.get(); }
  size_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::byte* data() { return data_; }

 private:
  SealedMemory(FileDescriptor descriptor, void* data, size_t size);

  FileDescriptor descriptor_;
  std::byte* data_;
  size_t size_;
};

}  // namespace tutti::rpc
