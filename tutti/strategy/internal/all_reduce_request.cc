// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/all_reduce_request.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include <ATen/ops/empty.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/strategy/internal/scalar_values.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {
namespace {

// Below this size the last replica to arrive reduces alone: a second meeting would take
// longer than the work.
constexpr int64_t kShareAboveBytes = 1 << 10;

[[noreturn]] void refuse(const char* function, size_t leaf, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument,
              message("ReplicaContext::", function, ": leaf ", leaf, " ", reason));
}

void check_all_reduce_leaf(const char* function, ReduceOp op, const Leaf& leaf, size_t i) {
  switch (leaf.kind) {
    case Leaf::Kind::kTensor:
      if (!leaf.tensor().defined()) refuse(function, i, "is an undefined tensor.");
      if (leaf.tensor().layout() != at::kStrided) {
        refuse(function, i, "is not a dense tensor; use IndexedSlices for sparse values.");
      }
      check_reducible("ReplicaContext::all_reduce", op, leaf.tensor().scalar_type());
      return;
    case Leaf::Kind::kIndexedSlices:
      if (op != ReduceOp::kSum && op != ReduceOp::kMean) {
        refuse(function, i,
               message("is an IndexedSlices, which ", op,
                       " cannot reduce; use kSum or kMean, or to_dense()."));
      }
      return;
    case Leaf::Kind::kString:
      refuse(function, i, "is a string, which cannot be reduced.");
    case Leaf::Kind::kBool:
      refuse(function, i, "is a bool, which cannot be reduced; use an int.");
    case Leaf::Kind::kInteger:
      if (op == ReduceOp::kMean) {
        refuse(function, i,
               "is a C++ integer, whose mean would be truncated; use a double or a tensor.");
      }
      return;
    case Leaf::Kind::kFloating:
      return;
  }
}

}  // namespace

std::string describe_all(const LeafList& leaves) {
  if (leaves.size() == 1) return leaves[0].describe();
  const auto shown = std::span(leaves.data(), std::min<size_t>(leaves.size(), 4));
  return message(leaves.size(), " leaves (", joined(shown, ", ", &Leaf::describe),
                 leaves.size() > 4 ? ", ...)" : ")");
}

AllReduceRequest::AllReduceRequest(const char* function, StrategyExtended& strategy,
                                   const ReplicaContext& context, ReduceOp op,
                                   const LeafList& leaves, const std::string& structure,
                                   const CommunicationOptions& options, CallSite site)
    : MeetingRequest(function, site, Completer::kLast),
      local_replica_(context.local_replica_id()),
      strategy_(strategy),
      op_(op),
      leaves_(leaves),
      structure_(structure),
      options_(options) {
  options_.validate();
  set_timeout(options_.timeout);
  mark(reinterpret_cast<uintptr_t>(function));
  mark(static_cast<uint64_t>(op_) << 32 | leaves_.size());
  mark(static_cast<uint64_t>(options_.bytes_per_pack));
  if (!structure_.empty()) mark(std::hash<std::string>{}(structure_));
  for (size_t i = 0; i < leaves_.size(); ++i) {
    check_all_reduce_leaf(function, op_, leaves_[i], i);
    mark_leaf(leaves_[i]);
    if (leaves_[i].kind == Leaf::Kind::kTensor) tensors_.push_back(&leaves_[i].tensor());
  }
  choose_completer();
}

void AllReduceRequest::reduce_in_place() {
  if (tensors_.size() > 1) {
    c10::SmallVector<const void*, 8> seen;
    for (const at::Tensor* tensor : tensors_) {
      if (tensor->numel() > 0) seen.push_back(tensor->data_ptr());
    }
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "ReplicaContext::all_reduce_: two leaves share their memory, which would be "
                  "reduced twice. List each tensor once.");
    }
  }
  for (at::Tensor* tensor : tensors_) add_memory(tensor->data_ptr(), tensor->data_ptr());
}

void AllReduceRequest::allocate_outputs() {
  for (at::Tensor* tensor : tensors_) {
    // The kernels read raw memory, where a conjugate or negative view is not yet resolved.
    inputs_.push_back(tensor->resolve_conj().resolve_neg().contiguous());
    const at::ScalarType dtype = reduced_dtype(op_, tensor->scalar_type());
    const bool from_arena = tensor->device().is_cpu() && tensor->nbytes() >= kArenaAboveBytes;
    outputs_.push_back(
        from_arena ? strategy_.arena().empty(tensor->sizes(), dtype)
                   : at::empty(tensor->sizes(), tensor->options()
                                                    .dtype(dtype)
                                                    .memory_format(at::MemoryFormat::Contiguous)
                                                    .requires_grad(false)));
    add_memory(inputs_.back().data_ptr(), outputs_.back().data_ptr());
  }
}

// All replicas reduce together, unless there is too little work to share.
void AllReduceRequest::choose_completer() {
  int64_t bytes = 0;
  for (const at::Tensor* tensor : tensors_) bytes += static_cast<int64_t>(tensor->nbytes());
  const bool only_tensors = tensors_.size() == leaves_.size();
  set_completer(only_tensors && bytes > kShareAboveBytes ? Completer::kAll : Completer::kLast);
}

void AllReduceRequest::hand_out() {
  for (size_t i = 0; i < outputs_.size(); ++i) *tensors_[i] = std::move(outputs_[i]);
}

std::string AllReduceRequest::describe() const {
  return message(
      name(), "(", op_, ") of ", describe_all(leaves_),
      structure_.empty() ? "" : message(", structure ", structure_),
      options_.bytes_per_pack == 0 ? "" : message(", bytes_per_pack ", options_.bytes_per_pack));
}

void AllReduceRequest::complete(std::span<MeetingRequest* const> requests) {
  const auto request = [&](size_t replica) -> AllReduceRequest& {
    return *static_cast<AllReduceRequest*>(requests[replica]);
  };
  const auto input = [&](size_t replica, size_t i) -> at::Tensor& {
    AllReduceRequest& each = request(replica);
    return each.inputs_.empty() ? *each.tensors_[i] : each.inputs_[i];
  };
  const auto output = [&](size_t replica, size_t i) -> at::Tensor& {
    AllReduceRequest& each = request(replica);
    return each.outputs_.empty() ? *each.tensors_[i] : each.outputs_[i];
  };
  const auto memory = [&](size_t replica, size_t i) -> AllReduceBatch::Memory {
    if (i >= kNoted) return request(replica).memory_[i];
    const MeetingNote& note = note_of(replica);
    return {note.words[2 * i], const_cast<void*>(note.words[2 * i + 1])};
  };
  const auto claims = [&](size_t replica) -> std::atomic<int64_t>& {
    return request(replica).claims_;
  };
  AllReduceBatch::Team team;
  if (completer() == Completer::kAll) {
    team = {static_cast<size_t>(local_replica_), requests.size(), claims};
  }
  if (!tensors_.empty()) {
    const auto name = [this] { return label(); };
    const AllReduceBatch batch(op_, requests.size(), {tensors_.data(), tensors_.size()}, input,
                               output, memory, team, name);
    strategy_.cross_device_ops().all_reduce(batch, options_);
  }
  if (tensors_.size() == leaves_.size()) return;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    std::vector<Leaf> column;
    for (size_t r = 0; r < requests.size(); ++r) column.push_back(request(r).leaves_[i]);
    complete_other_leaf(column);
  }
}

void AllReduceRequest::add_memory(const void* input, void* output) {
  if (memory_.size() < kNoted) {
    set_word(2 * memory_.size(), input);
    set_word(2 * memory_.size() + 1, output);
  }
  memory_.push_back({input, output});
}

void AllReduceRequest::mark_shape(const at::Tensor& tensor, at::IntArrayRef sizes) {
  mark(static_cast<uint64_t>(tensor.scalar_type()) << 8 | sizes.size());
  for (const int64_t size : sizes) mark(static_cast<uint64_t>(size));
}

void AllReduceRequest::mark_leaf(const Leaf& leaf) {
  mark(static_cast<uint64_t>(leaf.kind) << 16 | static_cast<uint64_t>(leaf.is_signed) << 8 |
       leaf.bytes);
  if (leaf.kind == Leaf::Kind::kTensor) {
    mark_shape(leaf.tensor(), leaf.tensor().sizes());
  } else if (leaf.kind == Leaf::Kind::kIndexedSlices) {
    mark_shape(leaf.slices().values(), leaf.slices().values().sizes().slice(1));
    for (const int64_t size : leaf.slices().dense_shape()) mark(static_cast<uint64_t>(size));
  }
}

void AllReduceRequest::complete_other_leaf(const std::vector<Leaf>& column) const {
  if (column[0].kind == Leaf::Kind::kTensor) return;
  if (column[0].kind != Leaf::Kind::kIndexedSlices) {
    const Leaf result = column[0];
    reduce_scalars(strategy_, op_, column, result, options_);
    for (const Leaf& leaf : column) std::memcpy(leaf.data, result.data, result.bytes);
    return;
  }
  std::vector<const IndexedSlices*> parts;
  for (const Leaf& leaf : column) parts.push_back(&leaf.slices());
  const IndexedSlices all = strategy_.cross_device_ops().combine_slices(
      "ReplicaContext::all_reduce", op_, parts, options_);
  for (const Leaf& leaf : column) {
    const at::Device device = leaf.slices().values().device();
    leaf.slices() = IndexedSlices(all.values().to(device, /*non_blocking=*/false, /*copy=*/true),
                                  all.indices().to(device, /*non_blocking=*/false, /*copy=*/true),
                                  all.dense_shape());
  }
}

}  // namespace tutti::internal
