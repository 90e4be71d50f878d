// SPDX-License-Identifier: Apache-2.0
//
// Reduces gradients in host memory by the threads of the replicas themselves.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/collectives/gradient_reducer.h"

namespace tutti::internal {

/// See GradientReducer. Chunks of a bucket are claimed in order; those that were claimed by
/// help() are reduced before their replica comes to finish(), so that there the claims say which
/// chunks are left.
class HostGradientReducer final : public GradientReducer {
 public:
  explicit HostGradientReducer(std::vector<GradientBucket> buckets);

  void ready(size_t replica, size_t bucket, void* place) override;
  bool sums_in_place() const override { return true; }
  void help(size_t replica) override;
  [[nodiscard]] bool finish(size_t replica, ChunkFn reduced) override;
  void reset() override;

 private:
  struct alignas(64) Bucket {
    std::atomic<size_t> filled{0};   // by how many replicas
    std::atomic<size_t> claimed{0};  // chunks, by help()
    std::vector<void*> places;       // of each replica
  };
  struct alignas(64) Cursor {
    size_t seen = 0;  // buckets of ready_ that have no chunk left for this replica
  };

  void reduce(const GradientChunk& chunk);

  const size_t replicas_;
  std::vector<Bucket> states_;
  std::vector<Cursor> cursors_;
  std::vector<std::atomic<size_t>> ready_;  // bucket + 1, in the order they became ready
  alignas(64) std::atomic<size_t> num_ready_{0};
  alignas(64) std::atomic<size_t> next_chunk_{0};
  std::atomic<size_t> finished_{0};
};

}  // namespace tutti::internal
