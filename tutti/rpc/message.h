// SPDX-License-Identifier: Apache-2.0
//
// The bytes of one received message, in the pieces in which the network delivered them.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace tutti::rpc {

/// Owns its bytes; copies share them. Immutable, so any thread may read it.
class Message {
 public:
  using Piece = std::span<const std::byte>;

  Message() = default;
  /// `owner` keeps the pieces alive.
  Message(std::vector<Piece> pieces, std::shared_ptr<const void> owner);

  size_t size() const { return size_; }
  std::span<const Piece> pieces() const { return pieces_; }

  /// Fills `to` with the bytes from `offset` on; throws kInvalidArgument if there are too few.
  void copy_to(size_t offset, std::span<std::byte> to) const;

 private:
  std::vector<Piece> pieces_;
  std::shared_ptr<const void> owner_;
  size_t size_ = 0;
};

}  // namespace tutti::rpc
