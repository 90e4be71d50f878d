// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/host_gradient_reducer.h"

#include <span>
#include <utility>

#include "tutti/collectives/reduction_tree.h"

namespace tutti::internal {

HostGradientReducer::HostGradientReducer(std::vector<GradientBucket> buckets)
    : GradientReducer(std::move(buckets)),
      replicas_(this->buckets().empty() ? 1 : this->buckets().front().memory.size()),
      states_(this->buckets().size()),
      cursors_(replicas_),
      ready_(this->buckets().size()) {
  for (size_t b = 0; b < states_.size(); ++b) {
    for (const at::Tensor& memory : this->buckets()[b].memory) {
      states_[b].places.push_back(memory.data_ptr());
    }
  }
}

void HostGradientReducer::ready(size_t replica, size_t bucket, void* place) {
  Bucket& state = states_[bucket];
  state.places[replica] = place != nullptr ? place : buckets()[bucket].memory[replica].data_ptr();
  if (state.filled.fetch_add(1, std::memory_order_acq_rel) + 1 != replicas_) return;
  const size_t turn = num_ready_.fetch_add(1, std::memory_order_relaxed);
  ready_[turn].store(bucket + 1, std::memory_order_release);
}

void HostGradientReducer::help(size_t replica) {
  if (states_.empty()) return;  // nobody knows how many replicas there are
  size_t& seen = cursors_[replica].seen;
  while (seen < num_ready_.load(std::memory_order_relaxed)) {
    const size_t place = ready_[seen].load(std::memory_order_acquire);
    if (place == 0) return;  // about to be written
    const size_t bucket = place - 1;
    const size_t chunks = num_chunks(bucket);
    std::atomic<size_t>& claimed = states_[bucket].claimed;
    while (claimed.load(std::memory_order_relaxed) < chunks) {
      const size_t mine = claimed.fetch_add(1, std::memory_order_relaxed);
      if (mine < chunks) reduce(this->chunks()[first_chunk(bucket) + mine]);
    }
    ++seen;
  }
}

bool HostGradientReducer::finish(size_t, ChunkFn reduced) {
  if (states_.empty()) return true;
  while (true) {
    const size_t next = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (next >= chunks().size()) break;
    const GradientChunk& chunk = chunks()[next];
    const size_t claimed = states_[chunk.bucket].claimed.load(std::memory_order_relaxed);
    if (next - first_chunk(chunk.bucket) >= claimed) reduce(chunk);
    reduced(chunk);
  }
  if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == replicas_) reset();
  return true;
}

void HostGradientReducer::reduce(const GradientChunk& chunk) {
  if (replicas_ == 1) return;
  const std::vector<void*>& places = states_[chunk.bucket].places;
  reduce_tree(ReduceOp::kSum, buckets()[chunk.bucket].dtype(),
              std::span<const void* const>(places.data(), places.size()), places, chunk.begin,
              chunk.end);
}

void HostGradientReducer::reset() {
  for (Bucket& state : states_) {
    state.filled.store(0, std::memory_order_relaxed);
    state.claimed.store(0, std::memory_order_relaxed);
  }
  for (Cursor& cursor : cursors_) cursor.seen = 0;
  for (std::atomic<size_t>& place : ready_) place.store(0, std::memory_order_relaxed);
  num_ready_.store(0, std::memory_order_relaxed);
  next_chunk_.store(0, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_release);
}

}  // namespace tutti::internal
