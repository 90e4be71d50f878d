// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/variable_requests.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include "tutti/base/error.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {
namespace {

std::string describe_update(const VariableUpdate& update) {
  return message(update.function, " of ", update.variable.describe(), " with ",
                 describe_all(update.leaves), " by ", update.aggregation);
}

// Whether two replicas submitted the same tensor.
bool is_one(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() > 0 && a.data_ptr() == b.data_ptr() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

const at::Tensor& tensor_of(const Leaf& leaf) {
  return leaf.kind == Leaf::Kind::kTensor ? leaf.tensor() : leaf.slices().values();
}

const std::string kNoStructure;

}  // namespace

CombineUpdateRequest::CombineUpdateRequest(StrategyExtended& strategy,
                                           const ReplicaContext& context,
                                           const VariableUpdate& update)
    : AllReduceRequest(update.function, strategy, context, to_reduce_op(update.aggregation),
                       update.leaves, kNoStructure, strategy.communication_options(), update.site),
      strategy_(strategy),
      update_(update),
      replicas_(strategy.num_replicas_in_sync()) {
  mark(reinterpret_cast<uintptr_t>(&update.variable));
  if (update_.apply_once) set_completer(Completer::kLast);
}

std::string CombineUpdateRequest::describe() const { return describe_update(update_); }

bool CombineUpdateRequest::is_same_as(const CombineUpdateRequest& other) const {
  if (update_.same != other.update_.same) return false;
  const Leaf& mine = update_.leaves[0];
  const Leaf& theirs = other.update_.leaves[0];
  switch (update_.same) {
    case VariableUpdate::Same::kMirrored:
      return update_.mirrored == other.update_.mirrored;
    case VariableUpdate::Same::kNumber:
      return mine.tensor().equal(theirs.tensor());
    case VariableUpdate::Same::kNo:
      // It is not one component per replica, but a single value that all replicas see.
      return is_one(tensor_of(mine), tensor_of(theirs)) &&
             (mine.kind == Leaf::Kind::kTensor ||
              is_one(mine.slices().indices(), theirs.slices().indices()));
  }
  return false;
}

bool CombineUpdateRequest::is_zero() const {
  return update_.same == VariableUpdate::Same::kNumber &&
         update_.leaves[0].tensor().item<double>() == 0;
}

std::string CombineUpdateRequest::label() const {
  return message(update_.function, " of ", update_.variable.describe());
}

bool CombineUpdateRequest::is_same_here(std::span<MeetingRequest* const> requests) const {
  const auto& first = *static_cast<const CombineUpdateRequest*>(requests[0]);
  return replicas_ > 1 && std::all_of(requests.begin(), requests.end(), [&](MeetingRequest* each) {
           return static_cast<const CombineUpdateRequest*>(each)->is_same_as(first);
         });
}

// The decision to ask the other workers must not depend on the values on this worker.
bool CombineUpdateRequest::is_same_everywhere(std::span<MeetingRequest* const> requests,
                                              bool same_here) const {
  const auto all_bring = [&](VariableUpdate::Same kind) {
    return std::all_of(requests.begin(), requests.end(), [kind](MeetingRequest* each) {
      return static_cast<const CombineUpdateRequest*>(each)->update_.same == kind;
    });
  };
  if (strategy_.has_all_replicas() || all_bring(VariableUpdate::Same::kMirrored)) return same_here;
  if (!all_bring(VariableUpdate::Same::kNumber)) return false;  // each worker has its own tensors
  const at::Tensor value = update_.leaves[0].tensor().detach().to(at::kCPU).reshape({1});
  const at::Tensor mine = at::cat({value.view(at::kByte), at::full({1}, same_here, at::kByte)});
  const auto all = strategy_.workers().gather(mine, label());
  return same_here && std::all_of(all.begin(), all.end(),
                                  [&](const at::Tensor& each) { return each.equal(mine); });
}

void CombineUpdateRequest::complete(std::span<MeetingRequest* const> requests) {
  const auto request = [&](size_t i) -> CombineUpdateRequest& {
    return *static_cast<CombineUpdateRequest*>(requests[i]);
  };
  const bool same_here = is_same_here(requests);
  const bool all_same = is_same_everywhere(requests, same_here);
  const bool is_shared =
      all_same || (same_here && requests.size() > 1 && update_.same == VariableUpdate::Same::kNo);
  const at::NoGradGuard no_grad;
  if (is_shared && update_.aggregation == VariableAggregation::kSum && !is_zero()) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Variable::", update_.function, ": a non-distributed value (",
                        describe_all(update_.leaves),
                        ", the same on every replica) cannot be reduced by kSum over ", replicas_,
                        " replicas for ", update_.variable.describe(),
                        ". Give each replica's own tensor, use kMean, or multiply it yourself."));
  }
  if (!all_same) {
    AllReduceRequest::complete(requests);
  } else if (update_.leaves[0].kind == Leaf::Kind::kTensor) {
    const auto take = [](CombineUpdateRequest& each) { each.output(0).copy_(each.input(0)); };
    if (completer() == Completer::kAll) {
      take(*this);
    } else {
      for (size_t i = 0; i < requests.size(); ++i) take(request(i));
    }
  }
  if (!update_.apply_once) return;
  Leaf combined = update_.leaves[0];
  if (combined.kind == Leaf::Kind::kTensor) combined.data = &output(0);
  update_.apply_once(combined);
}

FirstUpdateRequest::FirstUpdateRequest(StrategyExtended& strategy, const VariableUpdate& update)
    : MeetingRequest(update.function, update.site, Completer::kFirst),
      strategy_(strategy),
      update_(update) {
  set_timeout(strategy.communication_options().timeout);
  mark(reinterpret_cast<uintptr_t>(update.function));
  mark(reinterpret_cast<uintptr_t>(&update.variable));
  const Leaf& leaf = update.leaves[0];
  mark(static_cast<uint64_t>(leaf.kind));
  if (leaf.kind == Leaf::Kind::kTensor) {
    for (const int64_t size : leaf.tensor().sizes()) mark(static_cast<uint64_t>(size));
  }
}

std::string FirstUpdateRequest::describe() const { return describe_update(update_); }

void FirstUpdateRequest::complete(std::span<MeetingRequest* const> requests) {
  const at::NoGradGuard no_grad;
  Leaf shared = static_cast<const FirstUpdateRequest*>(requests[0])->update_.leaves[0];
  at::Tensor tensor;
  std::optional<IndexedSlices> slices;
  if (shared.kind == Leaf::Kind::kTensor) {
    tensor = strategy_.workers().of_first(shared.tensor(), update_.variable.describe());
    shared.data = &tensor;
  } else if (!strategy_.has_all_replicas()) {
    const IndexedSlices& mine = shared.slices();
    const at::Tensor count = at::scalar_tensor(mine.indices().numel(), at::kLong);
    strategy_.workers().broadcast(count, "number of slices");
    const auto of_first = [&](const at::Tensor& part) {
      const at::Tensor all = strategy_.gather(PerReplica<at::Tensor>({part.detach()}), 0);
      return all.narrow(0, 0, count.item<int64_t>());
    };
    slices.emplace(of_first(mine.values()), of_first(mine.indices()), mine.dense_shape());
    shared.data = &*slices;
  }
  if (update_.apply_once) return update_.apply_once(shared);
  for (MeetingRequest* each : requests) static_cast<FirstUpdateRequest*>(each)->copy_from(shared);
}

void FirstUpdateRequest::copy_from(const Leaf& first) {
  const at::Device device = tensor_of(update_.leaves[0]).device();
  if (first.kind == Leaf::Kind::kTensor) {
    tensor_ = first.tensor().to(device, /*non_blocking=*/false, /*copy=*/true);
  } else {
    slices_.emplace(first.slices().values().to(device, /*non_blocking=*/false, /*copy=*/true),
                    first.slices().indices().to(device, /*non_blocking=*/false, /*copy=*/true),
                    first.slices().dense_shape());
  }
}

void FirstUpdateRequest::hand_out() {
  if (tensor_.defined()) update_.leaves[0].tensor() = std::move(tensor_);
  if (slices_) update_.leaves[0].slices() = std::move(*slices_);
}

}  // namespace tutti::internal
