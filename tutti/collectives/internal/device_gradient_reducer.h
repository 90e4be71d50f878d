// SPDX-License-Identifier: Apache-2.0
//
// Reduces gradients by CrossDeviceOps, wherever they lie: all buckets at the end of backward.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/gradient_reducer.h"

namespace tutti::internal {

/// See GradientReducer. `ops` outlives it. Threads: as GradientReducer.
class DeviceGradientReducer final : public GradientReducer {
 public:
  DeviceGradientReducer(CrossDeviceOps& ops, std::vector<GradientBucket> buckets,
                        const CommunicationOptions& options);

  void ready(size_t, size_t, void*) override {}
  void help(size_t) override {}
  [[nodiscard]] bool finish(size_t replica, ChunkFn reduced) override;
  bool reset() override;

 private:
  struct alignas(64) Claims {
    std::atomic<int64_t> next{0};
  };

  CrossDeviceOps& ops_;
  const CommunicationOptions options_;
  const size_t replicas_;
  std::vector<at::Tensor> memory_;  // of replica r and bucket b at r * buckets + b
  std::vector<Claims> claims_;
  std::atomic<size_t> finished_{0};
};

}  // namespace tutti::internal
