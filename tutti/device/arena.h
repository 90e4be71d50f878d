// SPDX-License-Identifier: Apache-2.0
//
// Memory that a strategy's reducer can reach. Code that lays out tensors to be reduced allocates
// them from the strategy's arena: heap memory in huge pages today, shared or pinned memory for
// other reducers.

#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tutti/base/mutex.h"

namespace tutti {

/// Results of at least this size are worth allocating from an arena, whose pages are warm.
inline constexpr size_t kArenaAboveBytes = 64 << 10;

namespace internal {

/// The size of the block that holds `bytes`. There are eight size classes between two powers of
/// two, so that blocks of slightly different sizes, as ragged batches need, share a class and waste
/// at most an eighth.
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
  /// Allocates `bytes` > 0, aligned to at least 64; the last pointer releases them.
  virtual std::shared_ptr<void> do_allocate(size_t bytes) = 0;
};

/// Heap memory, advised to use huge pages. Freed blocks are kept and reused, so that a training
/// loop allocates only in its first steps; they return to the system with the arena. Thread-safe.
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
