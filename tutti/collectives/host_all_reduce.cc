// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/host_all_reduce.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"
#include "tutti/collectives/packing.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/device/logical_devices.h"

namespace tutti {
namespace {

// Below this the replica that arrives last reduces alone: waking another core
// takes longer than the work.
constexpr int64_t kShareAboveBytes = 16 << 10;
// One claim of work: small enough to even out, large enough not to be noticed.
constexpr int64_t kChunkBytes = 256 << 10;
constexpr int64_t kLineBytes = 64;
// From here on results come from the arena, whose pages are warm.
constexpr int64_t kArenaAboveBytes = 64 << 10;

bool in_host_memory(const AllReduceBatch& batch, size_t tensor) {
  const at::ScalarType dtype = batch.like(tensor).scalar_type();
  if (reduced_dtype(batch.op(), dtype) != dtype) return false;
  // Without a GPU in the process all tensors are here.
  static const bool host_only = list_logical_devices("GPU").empty();
  if (host_only) return true;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    if (!batch.input(r, tensor).device().is_cpu()) return false;
  }
  return true;
}

void reduce_by_operators(const AllReduceBatch& batch, size_t tensor) {
  std::vector<at::Tensor> inputs;
  for (size_t r = 0; r < batch.replicas(); ++r) inputs.push_back(batch.input(r, tensor));
  const at::Tensor reduced = reduce_tree(batch.op(), inputs);
  for (size_t r = 0; r < batch.replicas(); ++r) batch.output(r, tensor).copy_(reduced);
}

// Elements [begin, end) of one tensor of the batch.
void reduce_range(const AllReduceBatch& batch, size_t tensor, int64_t begin, int64_t end) {
  c10::SmallVector<const void*, 8> inputs;
  c10::SmallVector<void*, 8> outputs;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    const AllReduceBatch::Memory memory = batch.memory(r, tensor);
    inputs.push_back(memory.input);
    outputs.push_back(memory.output);
  }
  reduce_tree(batch.op(), batch.like(tensor).scalar_type(),
              std::span<const void* const>(inputs.data(), inputs.size()),
              std::span<void* const>(outputs.data(), outputs.size()), begin, end);
}

// Consecutive tensors of a pack, or a tensor of its own, cut into chunks.
struct Unit {
  size_t first;  // tensors [first, last), in the reversed order of the pack
  size_t last;
  int64_t chunks;
  int64_t chunk_elements;
  int64_t first_chunk;
};

class PackReduction {
 public:
  PackReduction(const AllReduceBatch& batch, std::span<const int64_t> bytes, int members)
      : batch_(batch), bytes_(bytes), members_(members) {}

  // Tensors at reversed positions [begin, end).
  void run(size_t begin, size_t end, Team& team) {
    int64_t total = 0;
    for (size_t i = begin; i < end; ++i) total += bytes_[i];
    if (total <= kShareAboveBytes || members_ == 1) {
      for (size_t i = begin; i < end; ++i) reduce_whole(i);
      return;
    }
    plan(begin, end, std::clamp(total / members_, kShareAboveBytes / 2, kChunkBytes));
    team.parallel_for(chunks_, [this](int64_t chunk) { reduce_chunk(chunk); });
  }

 private:
  void plan(size_t begin, size_t end, int64_t chunk_bytes) {
    units_.clear();
    chunks_ = 0;
    int64_t gathered = 0;
    for (size_t i = begin; i < end; ++i) {
      if (bytes_[i] > chunk_bytes) {
        add_large(i, chunk_bytes);
        gathered = 0;
      } else if (gathered == 0 || gathered + bytes_[i] > chunk_bytes) {
        units_.push_back({i, i + 1, 1, 0, chunks_++});
        gathered = bytes_[i];
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
    const int64_t count = (numel(i) + elements - 1) / elements;
    units_.push_back({i, i + 1, count, elements, chunks_});
    chunks_ += count;
  }

  void reduce_chunk(int64_t chunk) const {
    const auto after =
        std::upper_bound(units_.begin(), units_.end(), chunk,
                         [](int64_t value, const Unit& unit) { return value < unit.first_chunk; });
    const Unit& unit = *(after - 1);
    if (unit.chunk_elements == 0) {
      for (size_t i = unit.first; i < unit.last; ++i) reduce_whole(i);
      return;
    }
    const int64_t begin = (chunk - unit.first_chunk) * unit.chunk_elements;
    reduce_range(batch_, tensor(unit.first), begin,
                 std::min(begin + unit.chunk_elements, numel(unit.first)));
  }

  // Nothing for empty tensors and for those reduced by operators.
  void reduce_whole(size_t i) const {
    if (bytes_[i] > 0) reduce_range(batch_, tensor(i), 0, numel(i));
  }

  size_t tensor(size_t reversed) const { return batch_.tensors() - 1 - reversed; }
  int64_t numel(size_t reversed) const { return batch_.like(tensor(reversed)).numel(); }

  const AllReduceBatch& batch_;
  std::span<const int64_t> bytes_;
  int members_;
  c10::SmallVector<Unit, 8> units_;
  int64_t chunks_ = 0;
};

}  // namespace

at::Tensor HostAllReduce::do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                    const CommunicationOptions&) {
  const at::ScalarType dtype = value[0].scalar_type();
  std::vector<at::Tensor> inputs;
  bool host = reduced_dtype(op, dtype) == dtype;
  for (const at::Tensor& component : value) {
    inputs.push_back(component.detach().contiguous());
    host = host && component.device().is_cpu();
  }
  if (!host) return reduce_tree(op, inputs);
  const at::Tensor result = inputs[0].nbytes() >= static_cast<size_t>(kArenaAboveBytes)
                                ? arena().empty(inputs[0].sizes(), dtype)
                                : at::empty(inputs[0].sizes(), inputs[0].options());
  std::vector<const void*> pointers;
  for (const at::Tensor& input : inputs) pointers.push_back(input.data_ptr());
  void* const output = result.data_ptr();
  const int64_t grain =
      std::max<int64_t>(1, kChunkBytes / static_cast<int64_t>(result.element_size()));
  at::parallel_for(0, result.numel(), grain, [&](int64_t begin, int64_t end) {
    reduce_tree(op, dtype, pointers, std::span<void* const>(&output, 1), begin, end);
  });
  return result;
}

void HostAllReduce::do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options,
                                  Team& team) {
  c10::SmallVector<int64_t, 8> bytes;  // reversed: packs are formed from the end
  for (size_t t = batch.tensors(); t-- > 0;) {
    if (in_host_memory(batch, t)) {
      bytes.push_back(static_cast<int64_t>(batch.like(t).nbytes()));
    } else {
      reduce_by_operators(batch, t);
      bytes.push_back(0);
    }
  }
  const std::span<const int64_t> sizes(bytes.data(), bytes.size());
  PackReduction reduction(batch, sizes, team.size());
  for (size_t begin = 0; begin < sizes.size();) {
    const size_t end = pack_end(sizes, begin, options.bytes_per_pack);
    reduction.run(begin, end, team);
    begin = end;
  }
}

}  // namespace tutti
