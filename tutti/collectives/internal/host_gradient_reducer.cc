// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/host_gradient_reducer.h"

#include <span>
#include <utility>

#include "tutti/collectives/reduction_tree.h"

namespace tutti::internal {

HostGradientReducer::HostGradientReducer(std::vector<GradientBucket> buckets)
    : GradientReducer(std::move(buckets)),
      replicas_(this->buckets().empty() ? 1 : this->buckets().front().memory.size()) {
  for (const GradientBucket& bucket : this->buckets()) {
    places_.emplace_back();
    for (const at::Tensor& memory : bucket.memory) places_.back().push_back(memory.data_ptr());
  }
}

void HostGradientReducer::ready(size_t replica, size_t bucket, void* place) {
  places_[bucket][replica] =
      place != nullptr ? place : buckets()[bucket].memory[replica].data_ptr();
}

bool HostGradientReducer::finish(size_t, ChunkFn reduced) {
  if (places_.empty()) return true;  // the number of replicas is unknown
  while (true) {
    const size_t next = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (next >= chunks().size()) break;
    reduce(chunks()[next]);
    reduced(chunks()[next]);
  }
  if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == replicas_) reset();
  return true;
}

void HostGradientReducer::reduce(const GradientChunk& chunk) const {
  if (replicas_ == 1) return;
  const std::vector<void*>& places = places_[chunk.bucket];
  reduce_tree(ReduceOp::kSum, buckets()[chunk.bucket].dtype(),
              std::span<const void* const>(places.data(), places.size()), places, chunk.begin,
              chunk.end);
}

bool HostGradientReducer::reset() {
  next_chunk_.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_release);
  return false;
}

}  // namespace tutti::internal
