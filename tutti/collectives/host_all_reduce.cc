// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/host_all_reduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include "tutti/collectives/internal/host_batch.h"
#include "tutti/collectives/internal/host_gradient_reducer.h"
#include "tutti/collectives/internal/reduce_components.h"
#include "tutti/collectives/packing.h"
#include "tutti/collectives/reduction_tree.h"

namespace tutti {
namespace {

using internal::in_host_memory;

// One unit of work: small enough to balance the load, large enough for a negligible overhead.
constexpr int64_t kChunkBytes = 256 << 10;
constexpr int64_t kMinChunkBytes = 8 << 10;
// From this size on, members that are done take chunks of others. Below it, looking for
// them takes longer than it could save.
constexpr int64_t kClaimAboveBytes = 1 << 20;
constexpr int64_t kLineBytes = 64;
// Up to this size one member does everything: always the same one, whose caches then hold
// the tensors of all, while shares would move every line to a different core and back.
constexpr int64_t kAloneBytes = 16 << 10;

// One tensor of moderate size, the usual call: each member takes an equal part.
void reduce_share(const AllReduceBatch& batch) {
  const at::Tensor& like = batch.like(0);
  if (batch.members() > 1 && like.nbytes() <= static_cast<size_t>(kAloneBytes)) {
    if (batch.member() == 0) internal::reduce_range(batch, 0, 0, like.numel());
    return;
  }
  const int64_t count = like.numel();
  const auto members = static_cast<int64_t>(batch.members());
  const auto me = static_cast<int64_t>(batch.member());
  const int64_t line = kLineBytes / static_cast<int64_t>(like.element_size());
  const int64_t part = (count / members + line) / line * line;
  const int64_t begin = std::min(count, part * me);
  const int64_t end = me + 1 == members ? count : std::min(count, begin + part);
  if (members > 1 || like.nbytes() <= static_cast<size_t>(kChunkBytes)) {
    internal::reduce_range(batch, 0, begin, end);
    return;
  }
  // Outside of a replica LibTorch's threads are idle.
  const int64_t grain = kChunkBytes / static_cast<int64_t>(like.element_size());
  at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    internal::reduce_range(batch, 0, first, last);
  });
}

// Consecutive tensors of a pack, or a part of one tensor, cut into chunks.
struct Unit {
  size_t first;  // tensors [first, last), counted from the end of the batch
  size_t last;
  int64_t chunk_elements;  // 0: all tensors of the unit are one chunk
  int64_t first_chunk;
};

// Cuts a batch into chunks, the same on every member, and reduces those that fall
// to this one. Member k begins with the k-th part, so that a core touches the same
// memory in every step.
class BatchReduction {
 public:
  BatchReduction(const AllReduceBatch& batch, int64_t bytes_per_pack) : batch_(batch) {
    for (size_t i = 0; i < batch_.tensors(); ++i) {
      const size_t t = tensor(i);
      const bool host = in_host_memory(batch_, t);
      if (!host && batch_.member() == 0) internal::reduce_by_operators(batch_, t);
      bytes_.push_back(host ? static_cast<int64_t>(batch_.like(t).nbytes()) : 0);
      total_ += bytes_.back();
    }
    const auto members = static_cast<int64_t>(batch_.members());
    const int64_t chunk_bytes = std::clamp(total_ / members, kMinChunkBytes, kChunkBytes);
    const std::span<const int64_t> bytes(bytes_.data(), bytes_.size());
    for (size_t begin = 0; begin < bytes.size();) {
      const size_t end = pack_end(bytes, begin, bytes_per_pack);
      plan(begin, end, chunk_bytes);
      begin = end;
    }
  }

  void run() const {
    const size_t members = batch_.members();
    const size_t me = batch_.member();
    if (members == 1 || total_ <= kClaimAboveBytes) {
      for (int64_t c = first_chunk(me); c < first_chunk(me + 1); ++c) reduce_chunk(c);
      return;
    }
    for (size_t k = 0; k < members; ++k) {
      const size_t part = (me + k) % members;
      const int64_t first = first_chunk(part);
      const int64_t count = first_chunk(part + 1) - first;
      std::atomic<int64_t>& claimed = batch_.claims(part);
      while (claimed.load(std::memory_order_relaxed) < count) {
        const int64_t chunk = claimed.fetch_add(1, std::memory_order_relaxed);
        if (chunk < count) reduce_chunk(first + chunk);
      }
    }
  }

 private:
  void plan(size_t begin, size_t end, int64_t chunk_bytes) {
    int64_t gathered = 0;
    for (size_t i = begin; i < end; ++i) {
      if (bytes_[i] > chunk_bytes) {
        add_large(i, chunk_bytes);
        gathered = 0;
      } else if (gathered == 0 || gathered + bytes_[i] > chunk_bytes) {
        units_.push_back({i, i + 1, 0, chunks_++});
        gathered = std::max<int64_t>(bytes_[i], 1);
      } else {
        units_.back().last = i + 1;
        gathered += bytes_[i];
      }
    }
  }

  // Equal chunks whose borders lie between cache lines.
  void add_large(size_t i, int64_t chunk_bytes) {
    const auto size = static_cast<int64_t>(batch_.like(tensor(i)).element_size());
    const int64_t wanted = (bytes_[i] + chunk_bytes - 1) / chunk_bytes;
    const int64_t line = kLineBytes / size;
    const int64_t elements = ((numel(i) + wanted - 1) / wanted + line - 1) / line * line;
    units_.push_back({i, i + 1, elements, chunks_});
    chunks_ += (numel(i) + elements - 1) / elements;
  }

  void reduce_chunk(int64_t chunk) const {
    const auto after =
        std::upper_bound(units_.begin(), units_.end(), chunk,
                         [](int64_t value, const Unit& unit) { return value < unit.first_chunk; });
    const Unit& unit = *(after - 1);
    if (unit.chunk_elements == 0) {
      for (size_t i = unit.first; i < unit.last; ++i) reduce_range(i, 0, numel(i));
      return;
    }
    const int64_t begin = (chunk - unit.first_chunk) * unit.chunk_elements;
    reduce_range(unit.first, begin, std::min(begin + unit.chunk_elements, numel(unit.first)));
  }

  void reduce_range(size_t i, int64_t begin, int64_t end) const {
    if (bytes_[i] == 0) return;  // empty, or reduced by operators
    internal::reduce_range(batch_, tensor(i), begin, end);
  }

  int64_t first_chunk(size_t member) const {
    return chunks_ * static_cast<int64_t>(member) / static_cast<int64_t>(batch_.members());
  }
  // Packs are formed from the end of the batch.
  size_t tensor(size_t from_end) const { return batch_.tensors() - 1 - from_end; }
  int64_t numel(size_t from_end) const { return batch_.like(tensor(from_end)).numel(); }

  const AllReduceBatch& batch_;
  c10::SmallVector<int64_t, 8> bytes_;  // from the end
  int64_t total_ = 0;
  c10::SmallVector<Unit, 4> units_;
  int64_t chunks_ = 0;
};

}  // namespace

at::Tensor HostAllReduce::do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                    const CommunicationOptions&) {
  const std::vector<at::Tensor> components(value.begin(), value.end());
  return internal::reduce_components(op, components, arena());
}

void HostAllReduce::do_all_reduce(const AllReduceBatch& batch,
                                  const CommunicationOptions& options) {
  if (batch.tensors() == 1 && in_host_memory(batch, 0) &&
      (batch.members() == 1 || batch.like(0).nbytes() <= static_cast<size_t>(kClaimAboveBytes))) {
    reduce_share(batch);
    return;
  }
  BatchReduction(batch, options.bytes_per_pack).run();
}

std::unique_ptr<GradientReducer> HostAllReduce::make_gradient_reducer(
    std::vector<GradientBucket> buckets, const CommunicationOptions& options) {
  for (const GradientBucket& bucket : buckets) {
    for (const at::Tensor& memory : bucket.memory) {
      if (!memory.device().is_cpu()) {
        return CrossDeviceOps::make_gradient_reducer(std::move(buckets), options);
      }
    }
  }
  return std::make_unique<internal::HostGradientReducer>(std::move(buckets));
}

}  // namespace tutti
