// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/cross_device_ops.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "tutti/base/error.h"
#include "tutti/collectives/gather_check.h"
#include "tutti/collectives/internal/device_gradient_reducer.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/collectives/sparse_reduction.h"
#include "tutti/device/device_scope.h"
#include "tutti/nest/leaf.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message("CrossDeviceOps::", function, ": ", reason));
}

void check_dense(const char* function, const PerReplica<at::Tensor>& value) {
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].defined()) {
      refuse(function, message("the component of replica ", i, " is an undefined tensor."));
    }
    if (value[i].layout() != at::kStrided) {
      refuse(function, message("the component of replica ", i,
                               " is not a dense tensor; use IndexedSlices for sparse values."));
    }
  }
}

void check_alike(const char* function, const PerReplica<at::Tensor>& value) {
  check_dense(function, value);
  for (size_t i = 1; i < value.size(); ++i) {
    if (value[i].sizes() == value[0].sizes() && value[i].scalar_type() == value[0].scalar_type()) {
      continue;
    }
    refuse(function, message("replica 0 has ", describe(value[0]), " but replica ", i, " has ",
                             describe(value[i]),
                             ". Components must have equal shapes and dtypes; give "
                             "Strategy::reduce an axis if they differ along it."));
  }
}

// copy_ would silently broadcast or cast a result that does not match.
const at::Tensor& check_reduced(ReduceOp op, const at::Tensor& reduced,
                                const PerReplica<at::Tensor>& value) {
  const at::ScalarType dtype = reduced_dtype(op, value[0].scalar_type());
  if (reduced.defined() && reduced.sizes() == value[0].sizes() && reduced.scalar_type() == dtype) {
    return reduced;
  }
  refuse("do_reduce",
         message("the implementation returned ", describe(reduced), " for ", op, " of ",
                 describe(value[0]), "; it must return ", dtype_name(dtype), " of that shape."));
}

// Results have their own memory, whatever an implementation returns.
at::Tensor own_memory(const at::Tensor& result, const PerReplica<at::Tensor>& value) {
  const bool is_input = std::any_of(
      value.begin(), value.end(), [&](const at::Tensor& each) { return each.is_alias_of(result); });
  return is_input ? result.clone() : result;
}

// Implementations may read raw memory, which lacks the effect of a conjugate or negative view.
bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

PerReplica<at::Tensor> resolve(const PerReplica<at::Tensor>& value) {
  return value.map([](const at::Tensor& each) { return each.resolve_conj().resolve_neg(); });
}

// A true all-reduce: every component goes to the device it lies on.
bool stays_in_place(const PerReplica<at::Tensor>& value, const Destinations& destinations) {
  const std::vector<DeviceSpec>& devices = destinations.devices();
  if (devices.size() == 1 || devices.size() != value.size()) return false;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (torch_device(devices[i]) != value[i].device()) return false;
  }
  return true;
}

// Inputs as implementations expect them, and outputs for each replica, of a batch that
// one thread reduces.
class OwnBatch {
 public:
  OwnBatch(ReduceOp op, std::span<const PerReplica<at::Tensor>* const> values, Arena& arena)
      : op_(op), replicas_(values[0]->size()) {
    for (const PerReplica<at::Tensor>* value : values) {
      for (const at::Tensor& component : *value) {
        inputs_.push_back(component.detach().resolve_conj().resolve_neg().contiguous());
        const at::ScalarType dtype = reduced_dtype(op, component.scalar_type());
        const bool from_arena = component.is_cpu() && component.nbytes() >= kArenaAboveBytes;
        outputs_.push_back(from_arena
                               ? arena.empty(component.sizes(), dtype)
                               : at::empty(component.sizes(),
                                           component.options().dtype(dtype).requires_grad(false)));
      }
    }
    for (size_t t = 0; t < values.size(); ++t) like_.push_back(&inputs_[t * replicas_]);
  }

  void run(FunctionRef<void(const AllReduceBatch&)> fn) {
    const auto input = [this](size_t r, size_t t) -> at::Tensor& {
      return inputs_[t * replicas_ + r];
    };
    const auto output = [this](size_t r, size_t t) -> at::Tensor& {
      return outputs_[t * replicas_ + r];
    };
    const auto memory = [&](size_t r, size_t t) -> AllReduceBatch::Memory {
      return {input(r, t).data_ptr(), output(r, t).data_ptr()};
    };
    fn(AllReduceBatch(op_, replicas_, like_, input, output, memory, {}));
  }

  Mirrored<at::Tensor> result(size_t tensor) const {
    const auto first = outputs_.begin() + static_cast<std::ptrdiff_t>(tensor * replicas_);
    return Mirrored<at::Tensor>(
        std::vector<at::Tensor>(first, first + static_cast<std::ptrdiff_t>(replicas_)));
  }

 private:
  ReduceOp op_;
  size_t replicas_;
  std::vector<at::Tensor> inputs_;  // tensor 0 of every replica, then tensor 1, ...
  std::vector<at::Tensor> outputs_;
  std::vector<at::Tensor*> like_;
};

}  // namespace

CrossDeviceOps::CrossDeviceOps(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {
  if (arena_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "CrossDeviceOps: the arena is null.");
  }
}

Mirrored<at::Tensor> CrossDeviceOps::reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                            const Destinations& destinations,
                                            const CommunicationOptions& options) {
  options.validate();
  check_alike("reduce", value);
  check_reducible("CrossDeviceOps::reduce", op, value[0].scalar_type());
  const at::NoGradGuard no_grad;
  if (!stays_in_place(value, destinations)) {
    if (std::any_of(value.begin(), value.end(), is_lazy)) {
      return Mirrored<at::Tensor>(
          do_reduce_to(op, resolve(value), destinations.devices(), options));
    }
    return Mirrored<at::Tensor>(do_reduce_to(op, value, destinations.devices(), options));
  }
  const PerReplica<at::Tensor>* const values[] = {&value};
  OwnBatch batch(op, values, arena());
  batch.run([&](const AllReduceBatch& each) { do_all_reduce(each, options); });
  return batch.result(0);
}

Mirrored<IndexedSlices> CrossDeviceOps::reduce(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                               const Destinations& destinations,
                                               const CommunicationOptions& options) {
  options.validate();
  std::vector<const IndexedSlices*> parts;
  for (const IndexedSlices& part : value) parts.push_back(&part);
  const at::NoGradGuard no_grad;
  const IndexedSlices all = combine_slices("CrossDeviceOps::reduce", op, parts, options);
  if (destinations.size() == 1 &&
      all.values().device() == torch_device(destinations.devices()[0])) {
    return Mirrored<IndexedSlices>({all});
  }
  const std::vector<at::Tensor> values = do_broadcast(all.values(), destinations.devices());
  const std::vector<at::Tensor> indices = do_broadcast(all.indices(), destinations.devices());
  std::vector<IndexedSlices> results;
  for (size_t i = 0; i < values.size(); ++i) {
    results.emplace_back(values[i], indices[i], all.dense_shape());
  }
  return Mirrored<IndexedSlices>(std::move(results));
}

IndexedSlices CrossDeviceOps::combine_slices(const char* who, ReduceOp op,
                                             const std::vector<const IndexedSlices*>& parts,
                                             const CommunicationOptions&) {
  return concatenate_slices(who, op, parts);
}

std::vector<Mirrored<at::Tensor>> CrossDeviceOps::batch_reduce(
    ReduceOp op, const std::vector<ReducePair>& pairs, const CommunicationOptions& options) {
  options.validate();
  std::vector<Mirrored<at::Tensor>> results;
  if (pairs.empty()) return results;
  bool together = true;
  std::vector<const PerReplica<at::Tensor>*> values;
  for (const ReducePair& pair : pairs) {
    check_alike("batch_reduce", pair.value);
    check_reducible("CrossDeviceOps::batch_reduce", op, pair.value[0].scalar_type());
    together = together && pair.value.size() == pairs[0].value.size() &&
               stays_in_place(pair.value, pair.destinations);
    values.push_back(&pair.value);
  }
  const at::NoGradGuard no_grad;
  if (together) {
    OwnBatch batch(op, values, arena());
    batch.run([&](const AllReduceBatch& each) { do_all_reduce(each, options); });
    for (size_t t = 0; t < pairs.size(); ++t) results.push_back(batch.result(t));
    return results;
  }
  for (const ReducePair& pair : pairs) {
    results.push_back(reduce(op, pair.value, pair.destinations, options));
  }
  return results;
}

Mirrored<at::Tensor> CrossDeviceOps::broadcast(const at::Tensor& tensor,
                                               const Destinations& destinations) {
  if (!tensor.defined()) refuse("broadcast", "the tensor is undefined.");
  const at::NoGradGuard no_grad;
  return Mirrored<at::Tensor>(do_broadcast(tensor.detach(), destinations.devices()));
}

Mirrored<at::Tensor> CrossDeviceOps::gather(const PerReplica<at::Tensor>& value,
                                            const Destinations& destinations, int64_t axis,
                                            const CommunicationOptions& options) {
  options.validate();
  check_dense("gather", value);
  const std::vector<at::Tensor> parts(value.begin(), value.end());
  const int64_t along = check_gatherable("CrossDeviceOps::gather", parts, axis);
  const at::NoGradGuard no_grad;
  const at::Tensor all = do_gather(value, destinations.devices(), along, options);
  if (destinations.size() == 1 && all.device() == torch_device(destinations.devices()[0])) {
    return Mirrored<at::Tensor>({own_memory(all, value)});
  }
  return Mirrored<at::Tensor>(do_broadcast(all, destinations.devices()));
}

void CrossDeviceOps::all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) {
  options.validate();
  const at::NoGradGuard no_grad;
  do_all_reduce(batch, options);
}

std::vector<at::Tensor> CrossDeviceOps::do_reduce_to(ReduceOp op,
                                                     const PerReplica<at::Tensor>& value,
                                                     const Devices& devices,
                                                     const CommunicationOptions& options) {
  const at::Tensor reduced = check_reduced(op, do_reduce(op, value, options), value);
  if (devices.size() > 1 || reduced.device() != torch_device(devices[0])) {
    return do_broadcast(reduced, devices);
  }
  return {own_memory(reduced, value)};
}

std::vector<at::Tensor> CrossDeviceOps::do_broadcast(const at::Tensor& tensor,
                                                     const Devices& devices) {
  std::vector<at::Tensor> copies;
  for (const DeviceSpec& device : devices) {
    copies.push_back(tensor.to(torch_device(device), /*non_blocking=*/false, /*copy=*/true));
  }
  return copies;
}

at::Tensor CrossDeviceOps::do_gather(const PerReplica<at::Tensor>& value, const Devices& devices,
                                     int64_t axis, const CommunicationOptions&) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : value) parts.push_back(part.detach().to(torch_device(devices[0])));
  return at::cat(parts, axis);
}

void CrossDeviceOps::do_all_reduce(const AllReduceBatch& batch,
                                   const CommunicationOptions& options) {
  if (batch.member() != 0) return;
  for (size_t t = 0; t < batch.tensors(); ++t) {
    std::vector<at::Tensor> components;
    for (size_t r = 0; r < batch.replicas(); ++r) components.push_back(batch.input(r, t));
    const PerReplica<at::Tensor> value(std::move(components));
    const at::Tensor reduced =
        check_reduced(batch.op(), do_reduce(batch.op(), value, options), value);
    for (size_t r = 0; r < batch.replicas(); ++r) batch.output(r, t).copy_(reduced);
  }
}

std::unique_ptr<GradientReducer> CrossDeviceOps::make_gradient_reducer(
    std::vector<GradientBucket> buckets, const CommunicationOptions& options) {
  return std::make_unique<internal::DeviceGradientReducer>(*this, std::move(buckets), options);
}

void CrossDeviceOps::all_gather(const AllGatherBatch& batch, const CommunicationOptions& options) {
  const at::NoGradGuard no_grad;
  do_all_gather(batch, options);
}

void CrossDeviceOps::do_all_gather(const AllGatherBatch& batch, const CommunicationOptions&) {
  const size_t me = batch.member();
  for (size_t i = 0; i < batch.tensors(); ++i) {
    const int64_t axis = batch.axis(i);
    std::vector<at::Tensor> parts;
    int64_t begin = 0;
    for (size_t r = 0; r < batch.replicas(); ++r) {
      const at::Tensor& part = batch.part(r, i);
      if (r < me) begin += part.size(axis);
      parts.push_back(part.to(batch.part(me, i).device()));
    }
    batch.give(me, i, at::cat(parts, axis), begin);
  }
}

}  // namespace tutti
