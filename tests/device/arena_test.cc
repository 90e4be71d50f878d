// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

size_t address(const at::Tensor& tensor) { return reinterpret_cast<size_t>(tensor.data_ptr()); }

bool all_equal(const at::Tensor& tensor, int value) {
  const int* data = tensor.data_ptr<int>();
  return std::all_of(data, data + tensor.numel(), [value](int each) { return each == value; });
}

TEST(HeapArena, HandsOutContiguousTensorsOfTheShapeAndDtype) {
  HeapArena arena;
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kLong, at::kComplexDouble}) {
    const at::Tensor tensor = arena.empty({3, 5}, dtype);
    EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{3, 5}));
    EXPECT_EQ(tensor.scalar_type(), dtype);
    EXPECT_TRUE(tensor.is_contiguous());
    EXPECT_TRUE(tensor.device().is_cpu());
    std::memset(tensor.data_ptr(), 0x3C, tensor.nbytes());
  }
}

TEST(HeapArena, AlignsToCacheLinesAndLargeBlocksToHugePages) {
  HeapArena arena;
  std::vector<at::Tensor> kept;
  for (const int64_t bytes : {1, 63, 65, 4096, 100000, 1 << 20}) {
    kept.push_back(arena.empty({bytes}, at::kByte));
    EXPECT_EQ(address(kept.back()) % 64, 0u) << bytes;
  }
  for (const int64_t bytes : {2 << 20, (2 << 20) + 1, 7 << 20}) {
    kept.push_back(arena.empty({bytes}, at::kByte));
    EXPECT_EQ(address(kept.back()) % (2 << 20), 0u) << bytes;
  }
}

TEST(HeapArena, SupportsScalarsAndEmptyTensors) {
  HeapArena arena;
  EXPECT_EQ(arena.empty({}, at::kFloat).numel(), 1);
  const at::Tensor none = arena.empty({0, 3}, at::kFloat);
  EXPECT_EQ(none.numel(), 0);
  EXPECT_EQ(none.sizes(), (at::IntArrayRef{0, 3}));
}

TEST(HeapArena, BlocksInUseDoNotOverlap) {
  HeapArena arena;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 20; ++i) {
    tensors.push_back(arena.empty({1000 * (i + 1)}, at::kInt));
    tensors.back().fill_(i);
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(all_equal(tensors[static_cast<size_t>(i)], i));
}

TEST(HeapArena, ALoopAllocatesOnlyInItsFirstRound) {
  HeapArena arena;
  std::optional<size_t> after_first;
  for (int round = 0; round < 5; ++round) {
    {
      std::vector<at::Tensor> step;
      for (const int64_t n : {10, 5000, 5000, 300000, 1 << 20}) {
        step.push_back(arena.empty({n}, at::kFloat));
      }
    }
    if (!after_first) after_first = arena.reserved_bytes();
    EXPECT_EQ(arena.reserved_bytes(), *after_first) << "round " << round;
  }
  EXPECT_GE(*after_first, 4u * (10 + 5000 + 5000 + 300000 + (1 << 20)));
}

TEST(HeapArena, ReusesFreedBlocks) {
  HeapArena arena;
  at::Tensor first = arena.empty({100000}, at::kFloat);
  const void* block = first.data_ptr();
  at::Tensor other = arena.empty({100000}, at::kFloat);
  EXPECT_NE(other.data_ptr(), block) << "still in use";
  first.reset();
  EXPECT_EQ(arena.empty({100000}, at::kFloat).data_ptr(), block);
}

TEST(HeapArena, SlightlyDifferentSizesShareBlocks) {
  HeapArena arena;
  arena.empty({1000000}, at::kFloat);
  const size_t reserved = arena.reserved_bytes();
  arena.empty({999000}, at::kFloat);
  EXPECT_EQ(arena.reserved_bytes(), reserved);
  EXPECT_LE(reserved, 4'000'000u * 9 / 8 + 4096) << "rounding costs at most an eighth";
}

TEST(HeapArena, AViewKeepsItsBlock) {
  HeapArena arena;
  at::Tensor view;
  {
    const at::Tensor whole = arena.empty({1000}, at::kInt);
    whole.fill_(7);
    view = whole.slice(0, 10, 20);
  }
  const at::Tensor other = arena.empty({1000}, at::kInt);
  other.fill_(9);
  EXPECT_TRUE(all_equal(view, 7));
}

TEST(HeapArena, ATensorMayOutliveTheArena) {
  auto arena = std::make_unique<HeapArena>();
  const at::Tensor kept = arena->empty({1 << 20}, at::kInt);
  const at::Tensor returned = arena->empty({100}, at::kInt);
  kept.fill_(3);
  arena.reset();
  EXPECT_TRUE(all_equal(kept, 3));
  kept.fill_(4);
}

TEST(HeapArena, RejectsImpossibleShapes) {
  HeapArena arena;
  EXPECT_TUTTI_ERROR(arena.empty({2, -1}, at::kFloat), ErrorCode::kInvalidArgument,
                     "Arena::empty: invalid shape [2, -1]");
  EXPECT_TUTTI_ERROR(arena.empty({int64_t{1} << 40, int64_t{1} << 40}, at::kFloat),
                     ErrorCode::kInvalidArgument, "invalid shape");
  // The count fits in 64 bits, the bytes do not.
  EXPECT_TUTTI_ERROR(arena.empty({std::numeric_limits<int64_t>::max()}, at::kDouble),
                     ErrorCode::kInvalidArgument, "invalid shape");
  EXPECT_TUTTI_ERROR(arena.empty({(int64_t{1} << 61) + 1}, at::kDouble),
                     ErrorCode::kInvalidArgument, "invalid shape");
  EXPECT_EQ(arena.reserved_bytes(), 0u);
}

TEST(HeapArena, RunningOutOfMemoryIsUnavailable) {
  HeapArena arena;
  EXPECT_TUTTI_ERROR(arena.empty({int64_t{1} << 55}, at::kByte), ErrorCode::kUnavailable,
                     "HeapArena: out of memory: the system cannot provide", "bytes.");
  EXPECT_EQ(arena.reserved_bytes(), 0u);
  EXPECT_EQ(arena.empty({8}, at::kByte).numel(), 8) << "the arena works afterwards";
}

TEST(HeapArena, ServesManyThreads) {
  HeapArena arena;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.push_back(std::make_unique<Thread>("user", [&arena, &wrong, t] {
      for (int i = 0; i < 200; ++i) {
        const at::Tensor tensor = arena.empty({500 + 100 * (i % 5)}, at::kInt);
        auto* data = tensor.data_ptr<int>();
        for (int64_t k = 0; k < tensor.numel(); ++k) data[k] = t;
        for (int64_t k = 0; k < tensor.numel(); ++k) wrong[static_cast<size_t>(t)] += data[k] != t;
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace tutti
