// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/worker_cross_device_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"
#include "tutti/collectives/internal/worker_gradient_reducer.h"
#include "tutti/collectives/packing.h"
#include "tutti/collectives/sparse_reduction.h"
#include "tutti/nest/leaf.h"
#include "tutti/values/context_frame.h"

namespace tutti {
namespace {

// Larger tensors gain nothing from being packed, and would have to be copied.
constexpr int64_t kPackUpToBytes = 256 << 10;
// Size of the header before the elements of a gathered tensor; keeps them aligned.
constexpr size_t kGatherHeadBytes = 64;

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

}  // namespace

// The memory of the local components. `outputs` has one entry for each, and may equal `inputs`.
struct WorkerCrossDeviceOps::Part {
  const WorkerTree& tree;
  at::ScalarType dtype;
  int64_t count;
  std::string_view name;
  at::IntArrayRef sizes;
  c10::SmallVector<const void*, 8> inputs;
  c10::SmallVector<void*, 8> outputs;
};

WorkerCrossDeviceOps::WorkerCrossDeviceOps(std::shared_ptr<WorkerGroup> group, int local_replicas)
    : CrossDeviceOps(group->arena()),
      group_(std::move(group)),
      tree_(group_->size(), local_replicas),
      tree_of_workers_(group_->size(), 1) {}

// A node lies where the result of its first replica will be, if the dtype allows it.
void WorkerCrossDeviceOps::reduce_part(ReduceOp op, const Part& part,
                                       const CommunicationOptions& options) {
  const std::span<const TreeNode> nodes = part.tree.nodes(group_->rank());
  const int first = group_->rank() * part.tree.local_replicas();
  const at::ScalarType inner = node_dtype(op, part.dtype);
  std::vector<at::Tensor> scratch;
  WorkerReduction job;
  job.op = op;
  job.dtype = part.dtype;
  job.count = part.count;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto begin = static_cast<size_t>(nodes[i].begin - first);
    const bool is_input = nodes[i].end - nodes[i].begin == 1 && inner == part.dtype;
    if (is_input) {
      job.nodes.push_back(part.inputs[begin]);
    } else if (inner == part.dtype && begin < part.outputs.size()) {
      job.nodes.push_back(part.outputs[begin]);
    } else {
      scratch.push_back(arena().empty({part.count}, inner));
      job.nodes.push_back(scratch.back().data_ptr());
    }
  }
  job.outputs.assign(part.outputs.begin(), part.outputs.end());
  job.prepare = [&, memory = job.nodes](int64_t from, int64_t to) {
    reduce_own_nodes(part.tree, group_->rank(), op, part.dtype, part.inputs, memory, from, to);
  };
  Operation operation;
  operation.name = part.name;
  operation.sizes = part.sizes;
  Lane& lane = group_->lane(LaneKind::kCollectives);
  wait(
      start_all_reduce(lane, part.tree, std::move(job), operation, lane.deadline(options.timeout)));
}

at::Tensor WorkerCrossDeviceOps::do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                           const CommunicationOptions& options) {
  return reduce_named(internal::OperationNameScope::current("reduce"), op, value, options);
}

at::Tensor WorkerCrossDeviceOps::reduce_named(std::string_view name, ReduceOp op,
                                              const PerReplica<at::Tensor>& value,
                                              const CommunicationOptions& options) {
  const MutexLock lock(turn());
  const at::ScalarType dtype = value[0].scalar_type();
  const bool exact = reduced_dtype(op, dtype) == dtype;
  const at::ScalarType reduced = exact ? dtype : at::kLong;
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& each : value) inputs.push_back(on_host(each).to(reduced));
  const at::Tensor output = inputs[0].nbytes() >= kArenaAboveBytes
                                ? arena().empty(inputs[0].sizes(), reduced)
                                : at::empty(inputs[0].sizes(), inputs[0].options());
  const bool all = static_cast<int>(inputs.size()) == tree_.local_replicas();
  TUTTI_CHECK(all || inputs.size() == 1);
  const WorkerTree& tree = all ? tree_ : tree_of_workers_;
  Part part{tree, reduced, output.numel(), name, output.sizes(), {}, {output.data_ptr()}};
  for (const at::Tensor& each : inputs) part.inputs.push_back(each.data_ptr());
  reduce_part(exact ? op : ReduceOp::kSum, part, options);
  const at::Tensor result = exact ? output : finish_tree(op, dtype, output, tree.replicas());
  return result.to(value[0].device());
}

// One member does everything: more threads do not speed up the path between processes.
void WorkerCrossDeviceOps::do_all_reduce(const AllReduceBatch& batch,
                                         const CommunicationOptions& options) {
  if (batch.member() != 0) return;
  const std::string name = batch.name();
  const auto is_plain = [&](size_t t) {
    const at::ScalarType dtype = batch.like(t).scalar_type();
    return reduced_dtype(batch.op(), dtype) == dtype && batch.like(t).device().is_cpu();
  };
  const auto is_small = [&](size_t t) {
    return is_plain(t) && static_cast<int64_t>(batch.like(t).nbytes()) < kPackUpToBytes;
  };
  for (size_t first = 0; first < batch.tensors();) {
    if (!is_plain(first)) {
      std::vector<at::Tensor> parts;
      for (size_t r = 0; r < batch.replicas(); ++r) parts.push_back(batch.input(r, first));
      const at::Tensor reduced =
          reduce_named(name, batch.op(), PerReplica<at::Tensor>(std::move(parts)), options);
      for (size_t r = 0; r < batch.replicas(); ++r) batch.output(r, first).copy_(reduced);
      ++first;
      continue;
    }
    std::vector<int64_t> bytes;  // sizes of those that may travel together
    for (size_t t = first; t < batch.tensors() && is_small(t) &&
                           batch.like(t).scalar_type() == batch.like(first).scalar_type();
         ++t) {
      bytes.push_back(static_cast<int64_t>(batch.like(t).nbytes()));
    }
    const size_t packed = pack_end(bytes, 0, options.bytes_per_pack);
    if (packed > 1) {
      reduce_packed(batch, name, first, first + packed, options);
    } else {
      reduce_one(batch, name, first, options);
    }
    first += std::max(packed, size_t{1});
  }
}

void WorkerCrossDeviceOps::reduce_one(const AllReduceBatch& batch, const std::string& name,
                                      size_t tensor, const CommunicationOptions& options) {
  const at::Tensor& like = batch.like(tensor);
  const MutexLock lock(turn());
  Part part{tree_, like.scalar_type(), like.numel(), name, like.sizes(), {}, {}};
  for (size_t r = 0; r < batch.replicas(); ++r) {
    const AllReduceBatch::Memory memory = batch.memory(r, tensor);
    part.inputs.push_back(memory.input);
    part.outputs.push_back(memory.output);
  }
  reduce_part(batch.op(), part, options);
}

void WorkerCrossDeviceOps::reduce_packed(const AllReduceBatch& batch, const std::string& what,
                                         size_t first, size_t last,
                                         const CommunicationOptions& options) {
  const at::ScalarType dtype = batch.like(first).scalar_type();
  const size_t size = c10::elementSize(dtype);
  std::vector<int64_t> counts;
  int64_t total = 0;
  for (size_t t = first; t < last; ++t) {
    counts.push_back(batch.like(t).numel());
    total += counts.back();
  }
  const auto replicas = static_cast<int64_t>(batch.replicas());
  const at::Tensor packed = arena().empty({replicas, total}, dtype);
  const auto row = [&](size_t r) {
    return static_cast<std::byte*>(packed.data_ptr()) + r * static_cast<size_t>(total) * size;
  };
  const std::string name = message(what, " of several");
  Part part{tree_, dtype, total, name, counts, {}, {}};
  for (size_t r = 0; r < batch.replicas(); ++r) {
    std::byte* at = row(r);
    for (size_t t = first; t < last; ++t) {
      const size_t bytes = batch.like(t).nbytes();
      if (bytes > 0) std::memcpy(at, batch.memory(r, t).input, bytes);
      at += bytes;
    }
    part.inputs.push_back(row(r));
    part.outputs.push_back(row(r));
  }
  {
    const MutexLock lock(turn());
    reduce_part(batch.op(), part, options);
  }
  for (size_t r = 0; r < batch.replicas(); ++r) {
    const std::byte* at = row(r);
    for (size_t t = first; t < last; ++t) {
      const size_t bytes = batch.like(t).nbytes();
      if (bytes > 0) std::memcpy(batch.memory(r, t).output, at, bytes);
      at += bytes;
    }
  }
}

// One member does everything, as above. Each replica's part begins after those of lower workers.
void WorkerCrossDeviceOps::do_all_gather(const AllGatherBatch& batch,
                                         const CommunicationOptions& options) {
  if (batch.member() != 0) return;
  const size_t replicas = batch.replicas();
  for (size_t i = 0; i < batch.tensors(); ++i) {
    const int64_t axis = batch.axis(i);
    std::vector<at::Tensor> parts;
    const at::Tensor extents = at::empty({static_cast<int64_t>(replicas)}, at::kLong);
    for (size_t r = 0; r < replicas; ++r) {
      parts.push_back(batch.part(r, i).detach());
      extents.data_ptr<int64_t>()[r] = parts.back().size(axis);
    }
    const std::string what = message("extents of all_gather(axis ", axis, "), leaf ", i);
    const auto workers = group_->gather(extents.view(at::kByte), what, options.timeout);
    int64_t begin = 0;
    for (int w = 0; w < group_->rank(); ++w) {
      begin += workers[static_cast<size_t>(w)].view(at::kLong).sum().item<int64_t>();
    }
    const at::Tensor all =
        gather(PerReplica<at::Tensor>(parts), Destinations(parts[0]), axis, options)[0];
    for (size_t r = 0; r < replicas; ++r) {
      batch.give(r, i, all.to(parts[r].device(), /*non_blocking=*/false, /*copy=*/r > 0), begin);
      begin += parts[r].size(axis);
    }
  }
}

// The extent along the axis precedes the elements; all other sizes must be equal.
at::Tensor WorkerCrossDeviceOps::do_gather(const PerReplica<at::Tensor>& value, const Devices&,
                                           int64_t axis, const CommunicationOptions& options) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& each : value) parts.push_back(on_host(each));
  const at::Tensor local = at::cat(parts, axis).contiguous();
  const int64_t extent = local.size(axis);
  const at::Tensor message_bytes =
      at::empty({static_cast<int64_t>(kGatherHeadBytes + local.nbytes())}, at::kByte);
  auto* const head = static_cast<std::byte*>(message_bytes.data_ptr());
  std::memset(head, 0, kGatherHeadBytes);
  std::memcpy(head, &extent, sizeof extent);
  if (local.nbytes() > 0) std::memcpy(head + kGatherHeadBytes, local.data_ptr(), local.nbytes());
  std::vector<int64_t> sizes = local.sizes().vec();
  sizes[static_cast<size_t>(axis)] = -1;
  const std::string name = message("gather(axis ", axis, ") of ", dtype_name(local.scalar_type()),
                                   c10::IntArrayRef(sizes));
  const std::vector<at::Tensor> all = group_->gather(message_bytes, name, options.timeout);
  std::vector<at::Tensor> gathered;
  for (size_t w = 0; w < all.size(); ++w) {
    int64_t rows = 0;
    if (all[w].nbytes() >= kGatherHeadBytes) std::memcpy(&rows, all[w].data_ptr(), sizeof rows);
    sizes[static_cast<size_t>(axis)] = rows;
    auto elements = static_cast<int64_t>(c10::elementSize(local.scalar_type()));
    bool fits = all[w].nbytes() >= kGatherHeadBytes && rows >= 0;
    for (const int64_t each : sizes)
      fits = fits && !__builtin_mul_overflow(elements, each, &elements);
    if (!fits || elements != static_cast<int64_t>(all[w].nbytes() - kGatherHeadBytes)) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("gather: ", group_->name(static_cast<int>(w)), " sent ", all[w].nbytes(),
                          " bytes for ", rows, " rows of ", describe(local),
                          ". All workers must gather tensors that differ along the axis only."));
    }
    auto* const data = static_cast<std::byte*>(all[w].data_ptr()) + kGatherHeadBytes;
    gathered.push_back(at::from_blob(data, sizes, at::TensorOptions().dtype(local.scalar_type())));
  }
  return at::cat(gathered, axis).to(value[0].device());
}

IndexedSlices WorkerCrossDeviceOps::combine_slices(const char* who, ReduceOp op,
                                                   const std::vector<const IndexedSlices*>& parts,
                                                   const CommunicationOptions& options) {
  const bool mean = op == ReduceOp::kMean;
  if (mean) check_reducible(who, op, parts[0]->values().scalar_type());
  const IndexedSlices local = concatenate_slices(who, mean ? ReduceOp::kSum : op, parts);
  const auto gathered = [&](const at::Tensor& tensor) {
    return do_gather(PerReplica<at::Tensor>(std::vector<at::Tensor>{tensor}), {}, 0, options);
  };
  at::Tensor values = gathered(local.values());
  const at::Tensor indices = gathered(local.indices().to(at::kLong));
  if (mean) {
    const auto replicas = static_cast<int64_t>(parts.size()) * group_->size();
    values = divide_sum(values, replicas, values.scalar_type());
  }
  return {values, indices.to(local.indices().scalar_type()), local.dense_shape()};
}

std::unique_ptr<GradientReducer> WorkerCrossDeviceOps::make_gradient_reducer(
    std::vector<GradientBucket> buckets, const CommunicationOptions& options) {
  return std::make_unique<internal::WorkerGradientReducer>(group_, tree_, std::move(buckets),
                                                           options.timeout);
}

}  // namespace tutti
