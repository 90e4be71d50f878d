// SPDX-License-Identifier: Apache-2.0
//
// all_reduce and all_gather of replicas: each replica checks its own leaves and
// allocates its results, then they meet and combine them: together or, if there is little
// to do, the last to arrive for all. The autograd functions wrap this for tensors that need
// a gradient.
//
// A gradient is computed where backward() runs, which may be a thread of
// LibTorch's engine: the functions keep the replica's context and never derive it from
// the thread.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/strategy/internal/all_reduce_request.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Names of the calls; their addresses identify them.
constexpr char kAllReduce[] = "all_reduce";
constexpr char kAllReduceInPlace[] = "all_reduce_";

[[noreturn]] void refuse(const char* function, size_t leaf, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument,
              message("ReplicaContext::", function, ": leaf ", leaf, " ", reason));
}

class AllGatherRequest final : public MeetingRequest {
 public:
  AllGatherRequest(StrategyExtended& strategy, const ReplicaContext& context,
                   const LeafList& leaves, const std::string& structure, int64_t axis,
                   const CommunicationOptions& options, CallSite site)
      : MeetingRequest("all_gather", site, Completer::kAll),
        strategy_(strategy),
        local_replica_(context.local_replica_id()),
        leaves_(leaves),
        structure_(structure),
        axis_(axis),
        options_(options) {
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
    begins_.resize(leaves_.size());
    outputs_.resize(leaves_.size());
  }

  void hand_out() {
    for (size_t i = 0; i < leaves_.size(); ++i) leaves_[i].tensor() = std::move(outputs_[i]);
  }

  /// Where this replica's part begins in the gathered leaf, after the meeting.
  int64_t begin_of_own_part(size_t leaf) const { return begins_[leaf]; }

  std::string describe() const override {
    return message("all_gather(axis ", axis_, ") of ", internal::describe_all(leaves_),
                   structure_.empty() ? "" : message(", structure ", structure_));
  }

  void complete(std::span<MeetingRequest* const> requests) override {
    const auto request = [&](size_t r) { return static_cast<AllGatherRequest*>(requests[r]); };
    const auto part = [&](size_t r, size_t i) -> const at::Tensor& {
      return request(r)->leaves_[i].tensor();
    };
    const auto give = [&](size_t r, size_t i, at::Tensor all, int64_t begin) {
      request(r)->outputs_[i] = std::move(all);
      request(r)->begins_[i] = begin;
    };
    const AllGatherBatch batch(requests.size(), axes_, part, give,
                               static_cast<size_t>(local_replica_));
    strategy_.cross_device_ops().all_gather(batch, options_);
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
             message("is ", leaf.describe(), ", which has no axis ", axis_, "; it must be between ",
                     -rank, " and ", rank - 1, "."));
    }
    return axis_ < 0 ? axis_ + rank : axis_;
  }

  StrategyExtended& strategy_;
  int local_replica_;
  const LeafList& leaves_;  // these two outlive the request
  const std::string& structure_;
  int64_t axis_;
  const CommunicationOptions options_;
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

// Stores the results of an autograd function in the tensor leaves.
void hand_out(const LeafList& leaves, const variable_list& results) {
  size_t next = 0;
  for (const Leaf& leaf : leaves) {
    if (leaf.kind == Leaf::Kind::kTensor) leaf.tensor() = results[next++];
  }
}

// A record of a call for its backward pass. It keeps the strategy alive.
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

variable_list reduce_gradients(const Call& call, ReduceOp op, variable_list gradients,
                               const char* function) {
  const internal::BackwardScope context(*call.strategy, *call.context, function);
  LeafList leaves;
  for (at::Tensor& gradient : gradients) {
    // LibTorch passes zeros for outputs without a gradient, such as masks.
    const at::ScalarType dtype = gradient.scalar_type();
    if (at::isFloatingType(dtype) || at::isComplexType(dtype)) {
      leaves.push_back({Leaf::Kind::kTensor, 0, false, &gradient});
    } else {
      gradient = at::Tensor();
    }
  }
  call.strategy->all_reduce(*call.context, op, leaves, "", call.options, call.site);
  return gradients;
}

void all_reduce_leaves(Call& call) {
  internal::AllReduceRequest request(kAllReduce, *call.strategy, *call.context, call.op,
                                     call.leaves, call.structure, call.options, call.site);
  request.allocate_outputs();
  call.strategy->meet(*call.context, request);
  request.hand_out();
}

void all_gather_leaves(Call& call) {
  AllGatherRequest request(*call.strategy, *call.context, call.leaves, call.structure, call.axis,
                           call.options, call.site);
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
                          " has no gradient; only kSum and kMean have one. Detach its input."));
    }
    variable_list results =
        reduce_gradients(*call, call->op, gradients, "ReplicaContext::all_reduce");
    results.insert(results.begin(), at::Tensor());  // for `call`
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

  // Sums the gradients of all replicas for all parts; each replica takes its own part.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const c10::intrusive_ptr<Call> call = saved_call(*context);
    variable_list results =
        reduce_gradients(*call, ReduceOp::kSum, gradients, "ReplicaContext::all_gather");
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined()) continue;
      const int64_t rank = results[i].dim();
      const int64_t axis = call->axis < 0 ? call->axis + rank : call->axis;
      results[i] = results[i].narrow(axis, call->begins[i], call->sizes[i]);
    }
    results.insert(results.begin(), at::Tensor());
    return results;
  }
};

}  // namespace

void StrategyExtended::all_reduce(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                                  const std::string& structure, const CommunicationOptions& options,
                                  CallSite site) {
  if (!needs_gradient(leaves)) {
    internal::AllReduceRequest request(kAllReduce, *this, context, op, leaves, structure,
                                       communication_options().merged_with(options), site);
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
  call->options = communication_options().merged_with(options);
  call->site = site;
  // Passed as a TensorList: apply() does not recognise the tensors of a vector.
  const variable_list inputs = tensors_of(leaves);
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
                     ", whose mean is not an integer "
                     "and cannot be stored in place; use all_reduce."));
    }
  }
  internal::AllReduceRequest request(kAllReduceInPlace, *this, context, op, leaves, structure,
                                     communication_options().merged_with(options), site);
  request.reduce_in_place();
  meet(context, request);
  for (const Leaf& leaf : leaves) {
    // LibTorch's own in-place operators do the same: a graph that saved the old value
    // must detect the change.
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
  call->options = communication_options().merged_with(options);
  call->site = site;
  if (needs_gradient(leaves)) {
    const variable_list inputs = tensors_of(leaves);
    hand_out(leaves, AllGatherFunction::apply(call, at::TensorList(inputs)));
  } else {
    all_gather_leaves(*call);
  }
}

}  // namespace tutti
