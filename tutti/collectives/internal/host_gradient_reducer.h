// SPDX-License-Identifier: Apache-2.0
//
// Reduces gradients in host memory by the threads of the replicas themselves.

#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "tutti/collectives/gradient_reducer.h"

namespace tutti::internal {

/// See GradientReducer. All is summed in finish(), where the replicas share the chunks and update
/// the parameters of each while it is in the cache. Summing during backward would gain nothing: no
/// core is idle then, the gradients are fetched twice, and the slowest replica, the only one that
/// finds buckets filled by all, falls further behind. Threads: as GradientReducer.
class HostGradientReducer final : public GradientReducer {
 public:
  explicit HostGradientReducer(std::vector<GradientBucket> buckets);

  void ready(size_t replica, size_t bucket, void* place) override;
  bool sums_in_place() const override { return true; }
  void help(size_t) override {}
  [[nodiscard]] bool finish(size_t replica, ChunkFn reduced) override;
  bool reset() override;

 private:
  void reduce(const GradientChunk& chunk) const;

  const size_t replicas_;
  std::vector<std::vector<void*>> places_;  // of each bucket, of each replica
  alignas(64) std::atomic<size_t> next_chunk_{0};
  std::atomic<size_t> finished_{0};
};

}  // namespace tutti::internal
