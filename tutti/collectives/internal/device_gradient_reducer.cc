// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/device_gradient_reducer.h"

#include <utility>

namespace tutti::internal {

DeviceGradientReducer::DeviceGradientReducer(CrossDeviceOps& ops,
                                             std::vector<GradientBucket> buckets,
                                             const CommunicationOptions& options)
    : GradientReducer(std::move(buckets)),
      ops_(ops),
      options_(options),
      replicas_(this->buckets().empty() ? 1 : this->buckets().front().memory.size()),
      claims_(replicas_) {
  for (size_t r = 0; r < replicas_; ++r) {
    for (const GradientBucket& bucket : this->buckets()) memory_.push_back(bucket.memory[r]);
  }
}

bool DeviceGradientReducer::finish(size_t replica, ChunkFn) {
  const size_t tensors = buckets().size();
  if (tensors == 0) return false;
  std::vector<at::Tensor*> like;
  for (size_t b = 0; b < tensors; ++b) like.push_back(&memory_[b]);
  const auto tensor = [&](size_t r, size_t b) -> at::Tensor& { return memory_[r * tensors + b]; };
  const auto memory = [&](size_t r, size_t b) {
    void* const data = tensor(r, b).data_ptr();
    return AllReduceBatch::Memory{data, data};
  };
  const auto claims = [&](size_t member) -> std::atomic<int64_t>& { return claims_[member].next; };
  const AllReduceBatch batch(ReduceOp::kSum, replicas_, like, tensor, tensor, memory,
                             {.member = replica, .size = replicas_, .claims = claims});
  ops_.all_reduce(batch, options_);
  if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == replicas_) reset();
  return false;
}

bool DeviceGradientReducer::reset() {
  for (Claims& claims : claims_) claims.next.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_release);
  return false;
}

}  // namespace tutti::internal
