// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include <ATen/ops/from_blob.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

size_t internal::block_bytes(size_t bytes) {
  const size_t step = std::max(kPage, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

at::Tensor Arena::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("Arena::empty: invalid shape ", sizes,
                          "; sizes must not be negative, and the tensor must fit in memory."));
    }
  }
  std::shared_ptr<void> block = do_allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  void* data = block.get();
  return at::from_blob(
      data, sizes, [block = std::move(block)](void*) mutable { block.reset(); },
      at::TensorOptions().dtype(dtype));
}

// Outlives the arena while blocks are in use.
class HeapArena::Pool : public std::enable_shared_from_this<Pool> {
 public:
  ~Pool() {
    for (auto& [bytes, blocks] : free_) {
      for (void* block : blocks) munmap(block, bytes);
    }
  }

  std::shared_ptr<void> take(size_t bytes) {
    const size_t rounded = internal::block_bytes(bytes);
    void* block = reuse(rounded);
    if (block == nullptr) block = map(rounded);
    return {block, [self = shared_from_this(), rounded](void* p) { self->put_back(p, rounded); }};
  }

  size_t reserved_bytes() const {
    MutexLock lock(mutex_);
    return reserved_;
  }

 private:
  void* reuse(size_t bytes) {
    MutexLock lock(mutex_);
    std::vector<void*>& blocks = free_[bytes];
    if (blocks.empty()) return nullptr;
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }

  void* map(size_t bytes) {
    const size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
    const size_t span = bytes + alignment - kPage;
    void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
      throw Error(
          ErrorCode::kUnavailable,
          message("HeapArena: out of memory: the system cannot provide ", bytes, " bytes."));
    }
    // Trim to an aligned block: huge pages need it.
    auto* first = static_cast<std::byte*>(raw);
    const auto address = reinterpret_cast<size_t>(raw);
    const size_t skip = (alignment - address % alignment) % alignment;
    if (skip != 0) munmap(first, skip);
    if (span > skip + bytes) munmap(first + skip + bytes, span - skip - bytes);
    void* block = first + skip;
    if (bytes >= kHugePage) madvise(block, bytes, MADV_HUGEPAGE);
    MutexLock lock(mutex_);
    reserved_ += bytes;
    return block;
  }

  void put_back(void* block, size_t bytes) noexcept {
    MutexLock lock(mutex_);
    try {
      free_[bytes].push_back(block);
    } catch (...) {
      munmap(block, bytes);  // Recording it for reuse takes memory, so it goes back to the system.
      reserved_ -= bytes;
    }
  }

  mutable Mutex mutex_;
  std::map<size_t, std::vector<void*>> free_ TUTTI_GUARDED_BY(mutex_);
  size_t reserved_ TUTTI_GUARDED_BY(mutex_) = 0;
};

HeapArena::HeapArena() : pool_(std::make_shared<Pool>()) {}

size_t HeapArena::reserved_bytes() const { return pool_->reserved_bytes(); }

std::shared_ptr<void> HeapArena::do_allocate(size_t bytes) { return pool_->take(bytes); }

}  // namespace tutti
