// SPDX-License-Identifier: Apache-2.0
//
// all_reduce and all_gather of replicas: each replica checks its own leaves and
// allocates its results, then they meet and combine them: together, or the last to
// arrive for all when there is little to do.
// The autograd functions wrap the same for tensors that need a gradient.
//
// A gradient is computed where backward() runs, which may be a thread of
// LibTorch's engine: the functions keep the replica's context and never ask the
// thread which replica it works for.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/strategy/internal/scalar_values.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Names of the calls; their addresses tell them apart.
constexpr char kAllReduce[] = "all_reduce";
constexpr char kAllReduceInPlace[] = "all_reduce_";

// Below this the replica that arrives last reduces alone: a second meeting takes
// longer than the work.
constexpr int64_t kShareAboveBytes = 1 << 10;

std::string describe_all(const LeafList& leaves) {
  if (leaves.size() == 1) return leaves[0].describe();
  std::string text = message(leaves.size(), " leaves (");
  for (size_t i = 0; i < leaves.size() && i < 4; ++i) {
    text += (i == 0 ? "" : ", ") + leaves[i].describe();
  }
  return text + (leaves.size() > 4 ? ", ...)" : ")");
}

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
        refuse(function, i, "is a C++ integer, whose mean would be cut; use a double or a tensor.");
      }
      return;
    case Leaf::Kind::kFloating:
      return;
  }
}

class AllReduceRequest final : public MeetingRequest {
 public:
  AllReduceRequest(const char* function, StrategyExtended& strategy, const ReplicaContext& context,
                   ReduceOp op, const LeafList& leaves, const std::string& structure,
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

  // Throws when one tensor is listed twice: it would be reduced twice.
  void reduce_in_place() {
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

  // Results in memory of their own; inputs as the kernels want them.
  void allocate_outputs() {
    for (at::Tensor* tensor : tensors_) {
      // The kernels read memory, where a conjugate or negative view is not yet done.
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

  // Who reduces: all replicas together, unless there is too little to share.
  void choose_completer() {
    int64_t bytes = 0;
    for (const at::Tensor* tensor : tensors_) bytes += static_cast<int64_t>(tensor->nbytes());
    const bool only_tensors = tensors_.size() == leaves_.size();
    set_completer(only_tensors && bytes > kShareAboveBytes ? Completer::kAll : Completer::kLast);
  }

  // Replaces the leaves by the results.
  void hand_out() {
    for (size_t i = 0; i < outputs_.size(); ++i) *tensors_[i] = std::move(outputs_[i]);
  }

  std::string describe() const override {
    return message(
        name(), "(", op_, ") of ", describe_all(leaves_),
        structure_.empty() ? "" : message(", structure ", structure_),
        options_.bytes_per_pack == 0 ? "" : message(", bytes_per_pack ", options_.bytes_per_pack));
  }

  void complete(std::span<MeetingRequest* const> requests) override {
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
      const AllReduceBatch batch(op_, requests.size(), {tensors_.data(), tensors_.size()}, input,
                                 output, memory, team);
      strategy_.cross_device_ops().all_reduce(batch, options_);
    }
    if (tensors_.size() == leaves_.size()) return;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      std::vector<Leaf> column;
      for (size_t r = 0; r < requests.size(); ++r) column.push_back(request(r).leaves_[i]);
      complete_other_leaf(column);
    }
  }

 private:
  static constexpr size_t kNoted = 2;  // tensors whose memory stands in the note

  void add_memory(const void* input, void* output) {
    if (memory_.size() < kNoted) {
      set_word(2 * memory_.size(), input);
      set_word(2 * memory_.size() + 1, output);
    }
    memory_.push_back({input, output});
  }

  void mark_shape(const at::Tensor& tensor, at::IntArrayRef sizes) {
    mark(static_cast<uint64_t>(tensor.scalar_type()) << 8 | sizes.size());
    for (const int64_t size : sizes) mark(static_cast<uint64_t>(size));
  }

  void mark_leaf(const Leaf& leaf) {
    mark(static_cast<uint64_t>(leaf.kind) << 16 | static_cast<uint64_t>(leaf.is_signed) << 8 |
         leaf.bytes);
    if (leaf.kind == Leaf::Kind::kTensor) {
      mark_shape(leaf.tensor(), leaf.tensor().sizes());
    } else if (leaf.kind == Leaf::Kind::kIndexedSlices) {
      mark_shape(leaf.slices().values(), leaf.slices().values().sizes().slice(1));
      for (const int64_t size : leaf.slices().dense_shape()) mark(static_cast<uint64_t>(size));
    }
  }

  void complete_other_leaf(const std::vector<Leaf>& column) const {
    if (column[0].kind == Leaf::Kind::kTensor) return;
    if (column[0].kind != Leaf::Kind::kIndexedSlices) {
      const Leaf result = column[0];
      internal::reduce_scalars(op_, column, result);
      for (const Leaf& leaf : column) std::memcpy(leaf.data, result.data, result.bytes);
      return;
    }
    std::vector<const IndexedSlices*> parts;
    for (const Leaf& leaf : column) parts.push_back(&leaf.slices());
    const IndexedSlices all = internal::concatenate(op_, parts);
    for (const Leaf& leaf : column) {
      const at::Device device = leaf.slices().values().device();
      leaf.slices() = IndexedSlices(all.values().to(device, /*non_blocking=*/false, /*copy=*/true),
                                    all.indices().to(device, /*non_blocking=*/false, /*copy=*/true),
                                    all.dense_shape());
    }
  }

  c10::SmallVector<AllReduceBatch::Memory, 2> memory_;  // of each tensor leaf
  std::atomic<int64_t> claims_{0};
  int local_replica_;
  StrategyExtended& strategy_;
  ReduceOp op_;
  const LeafList& leaves_;  // these three outlive the call
  const std::string& structure_;
  const CommunicationOptions& options_;
  c10::SmallVector<at::Tensor*, 4> tensors_;
  c10::SmallVector<at::Tensor, 2> inputs_;  // empty: reduce in place
  c10::SmallVector<at::Tensor, 2> outputs_;
};

class AllGatherRequest final : public MeetingRequest {
 public:
  AllGatherRequest(const ReplicaContext& context, const LeafList& leaves,
                   const std::string& structure, int64_t axis, const CommunicationOptions& options,
                   CallSite site)
      : MeetingRequest("all_gather", site, Completer::kAll),
        local_replica_(context.local_replica_id()),
        leaves_(leaves),
        structure_(structure),
        axis_(axis) {
    options.validate();
    set_timeout(options.timeout);
    mark(static_cast<uint64_t>(axis_));
    mark(leaves_.size());
    if (!structure_.empty()) mark(std::hash<std::string>{}(structure_));
    for (size_t i = 0; i < leaves_.size(); ++i) {
      axes_.push_back(checked_axis(i));
      const at::Tensor& tensor = leaves_[i].tensor();
      mark(static_cast<uint64_t>(tensor.scalar_type()) << 8 | static_cast<uint64_t>(tensor.dim()));
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        if (d != axes_[i]) mark(static_cast<uint64_t>(tensor.size(d)));
      }
    }
    outputs_.resize(leaves_.size());
  }

  void hand_out() {
    for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i].tensor() = std::move(outputs_[i]);
  }

  /// Where this replica's part begins in the gathered leaf, after the meeting.
  int64_t begin_of_own_part(size_t leaf) const { return begins_[leaf]; }

  std::string describe() const override {
    return message("all_gather(axis ", axis_, ") of ", describe_all(leaves_),
                   structure_.empty() ? "" : message(", structure ", structure_));
  }

  void complete(std::span<MeetingRequest* const> requests) override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      std::vector<at::Tensor> parts;
      int64_t begin = 0;
      for (size_t r = 0; r < requests.size(); ++r) {
        const auto& each = *static_cast<const AllGatherRequest*>(requests[r]);
        const at::Tensor& part = each.leaves_[i].tensor();
        if (static_cast<int>(r) < local_replica_) begin += part.size(axes_[i]);
        parts.push_back(part.to(leaves_[i].tensor().device()));
      }
      begins_.push_back(begin);
      outputs_[i] = at::cat(parts, axes_[i]);
    }
  }

 private:
  int64_t checked_axis(size_t i) const {
    const Leaf& leaf = leaves_[i];
    if (leaf.kind == Leaf::Kind::kIndexedSlices) {
      throw Error(ErrorCode::kUnimplemented,
                  message("ReplicaContext::all_gather: leaf ", i,
                          " is an IndexedSlices; all_gather "
                          "does not support IndexedSlices. all_reduce concatenates them."));
    }
    if (leaf.kind != Leaf::Kind::kTensor || !leaf.tensor().defined() || leaf.tensor().dim() == 0) {
      refuse("all_gather", i,
             message("is ", leaf.describe(), "; it needs a tensor of rank 1 or more."));
    }
    const int64_t rank = leaf.tensor().dim();
    if (axis_ < -rank || axis_ >= rank) {
      refuse("all_gather", i,
             message("is ", leaf.describe(), ", which has no axis ", axis_,
                     "; it must lie between ", -rank, " and ", rank - 1, "."));
    }
    return axis_ < 0 ? axis_ + rank : axis_;
  }

  int local_replica_;
  const LeafList& leaves_;  // these two outlive the call
  const std::string& structure_;
  int64_t axis_;
  std::vector<int64_t> axes_;
  std::vector<int64_t> begins_;
  std::vector<at::Tensor> outputs_;
};

bool needs_gradient(const LeafList& leaves) {
  if (!at::GradMode::is_enabled()) return false;
  return std::any_of(leaves.begin(), leaves.end(), [](const Leaf& leaf) {
    return leaf.kind == Leaf::Kind::kTensor && leaf.tensor().defined() &&
           leaf.tensor().requires_grad();
  });
}

variable_list tensors_of(const LeafList& leaves) {
  variable_list tensors;
  for (const Leaf& leaf : leaves) {
    if (leaf.kind == Leaf::Kind::kTensor) tensors.push_back(leaf.tensor());
  }
  return tensors;
}

// Puts results of an autograd function into the tensor leaves.
void hand_out(const LeafList& leaves, const variable_list& results) {
  size_t next = 0;
  for (const Leaf& leaf : leaves) {
    if (leaf.kind == Leaf::Kind::kTensor) leaf.tensor() = results[next++];
  }
}

// What a call was, kept for its backward pass. The strategy is kept alive.
struct Call : torch::CustomClassHolder {
  std::shared_ptr<StrategyExtended> strategy;
  ReplicaContext* context;
  ReduceOp op = ReduceOp::kSum;
  LeafList leaves;  // valid in forward only
  std::string structure;
  int64_t axis = 0;
  CommunicationOptions options;
  CallSite site;
  std::vector<int64_t> begins;
  std::vector<int64_t> sizes;
};

c10::intrusive_ptr<Call> saved_call(const AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<Call>(context.saved_data.at("call").toCapsule());
}

// Makes the replica's context current on LibTorch's own threads. On a thread
// that works for somebody else, the backward pass is in the wrong place.
class BackwardContext {
 public:
  explicit BackwardContext(const Call& call, const char* function) {
    const internal::ContextFrame* frame = internal::current_frame();
    if (frame == nullptr) {
      frame_.emplace(call.strategy.get(), call.context);
    } else if (frame->replica != call.context) {
      throw Error(ErrorCode::kFailedPrecondition,
                  message("ReplicaContext::", function, ": the backward pass of replica ",
                          call.context->replica_id_in_sync_group(),
                          " runs in the context of another replica or in cross-replica context. "
                          "Call backward() inside Strategy::run, on the replica's own loss."));
    }
  }

 private:
  std::optional<internal::FrameScope> frame_;
};

variable_list reduce_gradients(const Call& call, ReduceOp op, variable_list gradients,
                               const char* function) {
  const BackwardContext context(call, function);
  LeafList leaves;
  for (Variable& gradient : gradients) {
    // LibTorch makes zeros for outputs that have no gradient, such as masks.
    const at::ScalarType dtype = gradient.scalar_type();
    if (at::isFloatingType(dtype) || at::isComplexType(dtype)) {
      leaves.push_back({Leaf::Kind::kTensor, 0, false, &gradient});
    } else {
      gradient = Variable();
    }
  }
  call.strategy->all_reduce(*call.context, op, leaves, "", call.options, call.site);
  return gradients;
}

void all_reduce_leaves(Call& call) {
  AllReduceRequest request(kAllReduce, *call.strategy, *call.context, call.op, call.leaves,
                           call.structure, call.options, call.site);
  request.allocate_outputs();
  call.strategy->meet(*call.context, request);
  request.hand_out();
}

void all_gather_leaves(Call& call) {
  AllGatherRequest request(*call.context, call.leaves, call.structure, call.axis, call.options,
                           call.site);
  for (const Leaf& leaf : call.leaves) {
    const int64_t rank = leaf.tensor().dim();
    call.sizes.push_back(leaf.tensor().size(call.axis < 0 ? call.axis + rank : call.axis));
  }
  call.strategy->meet(*call.context, request);
  for (size_t i = 0; i < call.leaves.size(); ++i) {
    call.begins.push_back(request.begin_of_own_part(i));
  }
  request.hand_out();
}

class AllReduceFunction : public torch::autograd::Function<AllReduceFunction> {
 public:
  static variable_list forward(AutogradContext* context, c10::intrusive_ptr<Call> call,
                               at::TensorList) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    all_reduce_leaves(*call);
    return tensors_of(call->leaves);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const c10::intrusive_ptr<Call> call = saved_call(*context);
    if (call->op != ReduceOp::kSum && call->op != ReduceOp::kMean) {
      throw Error(ErrorCode::kUnimplemented,
                  message("ReplicaContext::all_reduce: ", call->op,
                          " has no gradient; only kSum and kMean have. Detach its input."));
    }
    variable_list results = reduce_gradients(*call, call->op, gradients, "all_reduce");
    results.insert(results.begin(), Variable());  // for `call`
    return results;
  }
};

class AllGatherFunction : public torch::autograd::Function<AllGatherFunction> {
 public:
  static variable_list forward(AutogradContext* context, c10::intrusive_ptr<Call> call,
                               at::TensorList) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    all_gather_leaves(*call);
    return tensors_of(call->leaves);
  }

  // Everybody's gradient of everybody's part is summed; each takes its own part.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const c10::intrusive_ptr<Call> call = saved_call(*context);
    variable_list results = reduce_gradients(*call, ReduceOp::kSum, gradients, "all_gather");
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined()) continue;
      const int64_t rank = results[i].dim();
      const int64_t axis = call->axis < 0 ? call->axis + rank : call->axis;
      results[i] = results[i].narrow(axis, call->begins[i], call->sizes[i]);
    }
    results.insert(results.begin(), Variable());
    return results;
  }
};

}  // namespace

void StrategyExtended::all_reduce(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                                  const std::string& structure, const CommunicationOptions& options,
                                  CallSite site) {
  if (!needs_gradient(leaves)) {
    AllReduceRequest request(kAllReduce, *this, context, op, leaves, structure, options, site);
    request.allocate_outputs();
    meet(context, request);
    request.hand_out();
    return;
  }
  auto call = c10::make_intrusive<Call>();
  call->strategy = shared_from_this();
  call->context = &context;
  call->op = op;
  call->leaves = leaves;
  call->structure = structure;
  call->options = options;
  call->site = site;
  const variable_list inputs = tensors_of(leaves);  // as a TensorList: a vector is no input
  hand_out(leaves, AllReduceFunction::apply(call, at::TensorList(inputs)));
}

void StrategyExtended::all_reduce_in_place(ReplicaContext& context, ReduceOp op,
                                           const LeafList& leaves, const std::string& structure,
                                           const CommunicationOptions& options, CallSite site) {
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].kind != Leaf::Kind::kTensor) continue;
    const at::Tensor& tensor = leaves[i].tensor();
    if (!tensor.defined()) continue;  // reported with the other checks
    if (!tensor.is_contiguous()) {
      refuse("all_reduce_", i,
             message("is ", leaves[i].describe(),
                     " but not contiguous; reduce "
                     "tensor.contiguous() and copy it back."));
    }
    if (tensor.is_conj() || tensor.is_neg()) {
      refuse("all_reduce_", i, "is a conjugate or negative view; reduce a copy of it.");
    }
    if (tensor.requires_grad() && at::GradMode::is_enabled()) {
      refuse("all_reduce_", i,
             "requires a gradient, and reducing in place is not differentiable; "
             "use all_reduce, or a torch::NoGradGuard.");
    }
    if (reduced_dtype(op, tensor.scalar_type()) != tensor.scalar_type()) {
      refuse("all_reduce_", i,
             message("is ", leaves[i].describe(),
                     ", whose mean is no integer and "
                     "does not fit in place; use all_reduce."));
    }
  }
  AllReduceRequest request(kAllReduceInPlace, *this, context, op, leaves, structure, options, site);
  request.reduce_in_place();
  meet(context, request);
  for (const Leaf& leaf : leaves) {
    // As LibTorch's own in-place operators do: a graph that saved the old value
    // must notice.
    if (leaf.kind == Leaf::Kind::kTensor && !leaf.tensor().is_inference()) {
      leaf.tensor().unsafeGetTensorImpl()->bump_version();
    }
  }
}

void StrategyExtended::all_gather(ReplicaContext& context, const LeafList& leaves,
                                  const std::string& structure, int64_t axis,
                                  const CommunicationOptions& options, CallSite site) {
  auto call = c10::make_intrusive<Call>();
  call->strategy = shared_from_this();
  call->context = &context;
  call->leaves = leaves;
  call->structure = structure;
  call->axis = axis;
  call->options = options;
  call->site = site;
  if (needs_gradient(leaves)) {
    const variable_list inputs = tensors_of(leaves);
    hand_out(leaves, AllGatherFunction::apply(call, at::TensorList(inputs)));
  } else {
    all_gather_leaves(*call);
  }
}

}  // namespace tutti
