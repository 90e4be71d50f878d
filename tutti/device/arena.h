// SPDX-License-Identifier: Apache-2.0
//
// Memory that a strategy's reducer can reach. Whoever lays out tensors that will
// be reduced asks the arena of the strategy for them first: today it hands out
// heap memory in huge pages, for other reducers shared or pinned memory.

#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tutti/base/mutex.h"

namespace tutti {

/// From this size on a result is worth taking from an arena: its pages are warm.
inline constexpr size_t kArenaAboveBytes = 64 << 10;

namespace internal {

/// The size of the block for so many bytes. Eight classes between two powers of two: blocks that
/// differ a little in size, as ragged batches make them, share a class at the cost of at most an
/// eighth.
size_t block_bytes(size_t bytes);

}  // namespace internal

/// Thread-safe.
class Arena {
 public:
  Arena() = default;
  virtual ~Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// A contiguous tensor with undefined contents in the arena's memory, aligned
  /// to 64 bytes. It may outlive the arena.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  /// `bytes` > 0, aligned to at least 64; given back when the pointer dies.
  virtual std::shared_ptr<void> do_allocate(size_t bytes) = 0;
};

/// Heap memory, advised to use huge pages. Blocks that come back are kept and
/// handed out again, so that a training loop allocates in its first steps only; the
/// system gets them back when the arena is gone. Thread-safe.
class HeapArena final : public Arena {
 public:
  HeapArena();

  /// Bytes obtained from the system so far, in use or kept for reuse.
  size_t reserved_bytes() const;

 private:
  class Pool;

  std::shared_ptr<void> do_allocate(size_t bytes) override;

  std::shared_ptr<Pool> pool_;
};

}  // namespace tutti
