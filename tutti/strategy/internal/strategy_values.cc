// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/strategy_values.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "tutti/base/error.h"
#include "tutti/collectives/gather_check.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/context_checks.h"
#include "tutti/strategy/internal/scalar_values.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/variable_impl.h"

namespace tutti::internal {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message("Strategy::", function, ": ", reason));
}

// The axes of `tensor` as sorted numbers from 0 up; throws when one is out of range.
std::vector<int64_t> normal_axes(const at::Tensor& tensor, at::IntArrayRef axes) {
  std::vector<int64_t> result;
  for (const int64_t axis : axes) {
    const int64_t rank = tensor.dim();
    if (rank == 0) refuse("reduce", message(describe(tensor), " is a scalar: it has no axis."));
    if (axis < -rank || axis >= rank) {
      refuse("reduce", message("axis ", axis, " is out of range for ", describe(tensor),
                               "; it must be between ", -rank, " and ", rank - 1, "."));
    }
    result.push_back(axis < 0 ? axis + rank : axis);
  }
  std::sort(result.begin(), result.end());
  if (std::adjacent_find(result.begin(), result.end()) != result.end()) {
    refuse("reduce",
           message("the axes ", axes, " name one axis twice for ", describe(tensor), "."));
  }
  return result;
}

int64_t elements_along(const at::Tensor& tensor, at::IntArrayRef axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= tensor.size(axis);
  return count;
}

// The value that a replica without elements contributes to kMin, kMax and kProduct.
at::Scalar neutral(ReduceOp op, at::ScalarType dtype) {
  if (op == ReduceOp::kProduct) return 1;
  const double infinity = std::numeric_limits<double>::infinity();
  if (at::isFloatingType(dtype)) return op == ReduceOp::kMin ? infinity : -infinity;
  const int64_t bits = static_cast<int64_t>(c10::elementSize(dtype)) * 8;
  const bool is_signed = dtype != at::kByte;
  const int64_t highest =
      is_signed ? static_cast<int64_t>(~uint64_t{0} >> (65 - bits)) : (int64_t{1} << bits) - 1;
  return op == ReduceOp::kMin ? highest : (is_signed ? -highest - 1 : 0);
}

// Reduces one replica's tensor along the axes. Partial sums of 16-bit floats stay float32, and
// those of integers under kMean become int64, so that precision is only lost in the last step.
at::Tensor reduce_axes(ReduceOp op, const at::Tensor& tensor, const std::vector<int64_t>& axes) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) {
    const at::ScalarType dtype = tensor.scalar_type();
    const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
    const at::ScalarType wide =
        half ? at::kFloat
             : (op == ReduceOp::kMean && at::isIntegralType(dtype, false) ? at::kLong : dtype);
    return at::sum(tensor, axes, /*keepdim=*/false, wide);
  }
  if (elements_along(tensor, axes) == 0) {
    std::vector<int64_t> sizes = tensor.sizes().vec();
    for (size_t i = axes.size(); i-- > 0;) sizes.erase(sizes.begin() + axes[i]);
    return at::full(sizes, neutral(op, tensor.scalar_type()), tensor.options());
  }
  if (op == ReduceOp::kMin) return at::amin(tensor, axes);
  if (op == ReduceOp::kMax) return at::amax(tensor, axes);
  at::Tensor result = tensor;
  for (size_t i = axes.size(); i-- > 0;) {
    result = at::prod(result, axes[i], /*keepdim=*/false, tensor.scalar_type());
  }
  return result;
}

at::Tensor reduce_tensors_along(const StrategyExtended& strategy, ReduceOp op,
                                const std::vector<at::Tensor>& tensors, at::IntArrayRef axis) {
  auto& extended = const_cast<StrategyExtended&>(strategy);
  const at::ScalarType dtype = tensors[0].scalar_type();
  check_reducible("Strategy::reduce", op, dtype);
  std::vector<at::Tensor> partial;
  std::vector<at::Tensor> counts;
  for (const at::Tensor& tensor : tensors) {
    const std::vector<int64_t> axes = normal_axes(tensor, axis);
    partial.push_back(reduce_axes(op, tensor, axes));
    counts.push_back(at::full({}, elements_along(tensor, axes), at::kLong));
  }
  const ReduceOp across = op == ReduceOp::kMean ? ReduceOp::kSum : op;
  at::Tensor result = extended.reduce(across, PerReplica<at::Tensor>(std::move(partial)));
  if (op == ReduceOp::kMean) {
    const at::Tensor count = extended.reduce(ReduceOp::kSum, PerReplica<at::Tensor>(counts));
    const at::ScalarType target = reduced_dtype(op, dtype);
    const at::ScalarType inner =
        target == at::kHalf || target == at::kBFloat16 ? at::kFloat : target;
    result = result.to(inner).div(count.to(result.device(), inner));
    return result.to(target);
  }
  return result.to(dtype);
}

at::Tensor to_current_device(at::Tensor tensor) {
  const DeviceSpec* device = current_device();
  return device == nullptr ? tensor : tensor.to(torch_device(*device));
}

void check_structures(const char* function, const ReduceLeaves& leaves,
                      const std::vector<std::string>& structures) {
  for (size_t i = 1; i < leaves.size(); ++i) {
    if (structures[i] != structures[0] || leaves[i].size() != leaves[0].size()) {
      refuse(function, message("the value of replica ", i,
                               " has a different structure than that of "
                               "replica 0 (lengths, keys or empty optionals differ)."));
    }
  }
}

std::vector<Leaf> column_of(const ReduceLeaves& leaves, size_t i) {
  std::vector<Leaf> column;
  for (const LeafList& list : leaves) column.push_back(list[i]);
  return column;
}

std::vector<at::Tensor> tensors_of(const char* function, const std::vector<Leaf>& column) {
  std::vector<at::Tensor> tensors;
  for (size_t r = 0; r < column.size(); ++r) {
    if (!column[r].tensor().defined()) {
      refuse(function, message("the value of replica ", r, " has an undefined tensor."));
    }
    if (column[r].tensor().layout() != at::kStrided) {
      refuse(function, message("the value of replica ", r,
                               " is not a dense tensor; use "
                               "IndexedSlices for sparse values."));
    }
    tensors.push_back(column[r].tensor().detach());
  }
  return tensors;
}

at::Tensor reduce_column(const StrategyExtended& strategy, ReduceOp op,
                         const std::vector<Leaf>& column, at::OptionalIntArrayRef axis) {
  const std::vector<at::Tensor> tensors = tensors_of("reduce", column);
  for (size_t r = 1; r < tensors.size(); ++r) {
    if (tensors[r].scalar_type() != tensors[0].scalar_type() ||
        tensors[r].dim() != tensors[0].dim()) {
      refuse("reduce", message("replica 0 has ", describe(tensors[0]), " but replica ", r, " has ",
                               describe(tensors[r]), ". Types and ranks must be equal."));
    }
    if (!axis.has_value() && tensors[r].sizes() != tensors[0].sizes()) {
      refuse("reduce",
             message("replica 0 has ", describe(tensors[0]), " but replica ", r, " has ",
                     describe(tensors[r]),
                     ". Give the axis along which they differ, e.g. reduce(op, value, 0)."));
    }
  }
  check_reducible("Strategy::reduce", op, tensors[0].scalar_type());
  if (axis.has_value()) return reduce_tensors_along(strategy, op, tensors, *axis);
  return const_cast<StrategyExtended&>(strategy).reduce(op, PerReplica<at::Tensor>(tensors));
}

void refuse_scalar_column(ReduceOp op, const Leaf& leaf, bool has_axis) {
  if (leaf.kind == Leaf::Kind::kString) refuse("reduce", "a string cannot be reduced.");
  if (leaf.kind == Leaf::Kind::kBool) refuse("reduce", "a bool cannot be reduced; use an int.");
  if (has_axis) {
    refuse("reduce", message("a C++ ", leaf.describe(), " has no axis; leave the axis out."));
  }
  if (leaf.kind == Leaf::Kind::kInteger && op == ReduceOp::kMean) {
    refuse("reduce", "the mean of a C++ integer would be truncated; return a double or a tensor.");
  }
}

}  // namespace

void reduce_per_replica(const StrategyExtended& strategy, ReduceOp op, const ReduceLeaves& leaves,
                        const std::vector<std::string>& structures, const LeafList& result,
                        at::OptionalIntArrayRef axis) {
  check_cross_replica(strategy, "reduce", "all_reduce()");
  check_structures("reduce", leaves, structures);
  if (axis.has_value() && axis->empty()) axis = c10::nullopt;  // an empty list means no axis
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < result.size(); ++i) {
    const std::vector<Leaf> column = column_of(leaves, i);
    if (column[0].kind == Leaf::Kind::kTensor) {
      result[i].tensor() = to_current_device(reduce_column(strategy, op, column, axis));
    } else if (column[0].kind == Leaf::Kind::kIndexedSlices) {
      if (axis.has_value() || (op != ReduceOp::kSum && op != ReduceOp::kMean)) {
        refuse("reduce", message("IndexedSlices can be reduced by kSum and kMean without an axis, "
                                 "not by ",
                                 op, axis.has_value() ? " with one." : "."));
      }
      std::vector<const IndexedSlices*> parts;
      for (const Leaf& leaf : column) parts.push_back(&leaf.slices());
      auto& extended = const_cast<StrategyExtended&>(strategy);
      result[i].slices() = extended.cross_device_ops().combine_slices(
          "Strategy::reduce", op, parts, strategy.communication_options());
    } else {
      refuse_scalar_column(op, column[0], axis.has_value());
      reduce_scalars(const_cast<StrategyExtended&>(strategy), op, column, result[i],
                     strategy.communication_options());
    }
  }
}

void gather_per_replica(const StrategyExtended& strategy, const ReduceLeaves& leaves,
                        const std::vector<std::string>& structures, const LeafList& result,
                        int64_t axis) {
  check_cross_replica(strategy, "gather", "all_gather()");
  check_structures("gather", leaves, structures);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < result.size(); ++i) {
    const std::vector<Leaf> column = column_of(leaves, i);
    if (column[0].kind == Leaf::Kind::kIndexedSlices) {
      throw Error(ErrorCode::kUnimplemented,
                  "Strategy::gather: gather does not support IndexedSlices; reduce() concatenates "
                  "them.");
    }
    if (column[0].kind != Leaf::Kind::kTensor) {
      refuse("gather", message("a ", column[0].describe(),
                               " cannot be gathered; use "
                               "local_results()."));
    }
    const std::vector<at::Tensor> tensors = tensors_of("gather", column);
    const int64_t along = check_gatherable("Strategy::gather", tensors, axis);
    result[i].tensor() = to_current_device(
        const_cast<StrategyExtended&>(strategy).gather(PerReplica<at::Tensor>(tensors), along));
  }
}

void reduce_plain(const StrategyExtended& strategy, ReduceOp op, const LeafList& result,
                  at::OptionalIntArrayRef axis, bool is_mirrored) {
  check_cross_replica(strategy, "reduce", "all_reduce()");
  if (!is_mirrored && !strategy.has_all_replicas()) {  // each worker has its own value
    return reduce_per_replica(strategy, op, {result}, {""}, result, axis);
  }
  if (axis.has_value() && axis->empty()) axis = c10::nullopt;
  const bool same_everywhere =
      op == ReduceOp::kMean || op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (!same_everywhere && strategy.num_replicas_in_sync() > 1) {
    refuse("reduce", message("a value that is not per replica cannot be reduced by ", op, " over ",
                             strategy.num_replicas_in_sync(),
                             " replicas: it is the same on all of them. Return it from run(), or "
                             "multiply it yourself."));
  }
  const at::NoGradGuard no_grad;
  for (const Leaf& leaf : result) {
    if (leaf.kind == Leaf::Kind::kTensor && leaf.tensor().defined()) {
      check_reducible("Strategy::reduce", op, leaf.tensor().scalar_type());
      if (axis.has_value()) {
        const at::Tensor tensor = leaf.tensor().detach();
        const std::vector<int64_t> axes = normal_axes(tensor, *axis);
        const at::ScalarType target = reduced_dtype(op, tensor.scalar_type());
        at::Tensor reduced = reduce_axes(op, tensor, axes);
        if (op == ReduceOp::kMean) {
          const bool half = target == at::kHalf || target == at::kBFloat16;
          reduced = reduced.to(half ? at::kFloat : target).div(elements_along(tensor, axes));
        }
        leaf.tensor() = reduced.to(target);
      }
    } else if (leaf.kind != Leaf::Kind::kTensor && leaf.kind != Leaf::Kind::kIndexedSlices) {
      refuse_scalar_column(op, leaf, axis.has_value());
    }
  }
}

void gather_plain(const StrategyExtended& strategy, const LeafList& result, int64_t axis) {
  check_cross_replica(strategy, "gather", "all_gather()");
  if (!strategy.has_all_replicas()) {
    return gather_per_replica(strategy, {result}, {""}, result, axis);
  }
  for (const Leaf& leaf : result) {
    if (leaf.kind == Leaf::Kind::kIndexedSlices) {
      throw Error(ErrorCode::kUnimplemented,
                  "Strategy::gather: gather does not support IndexedSlices.");
    }
  }
}

void check_components(const StrategyExtended& strategy, const char* function, size_t components) {
  const auto local = static_cast<size_t>(strategy.num_local_replicas());
  if (components == 0 || components == local) return;
  refuse(function, message("an argument has ", components, " components, but ", strategy.describe(),
                           " has ", local, " local replicas. Was it made by another strategy?"));
}

void check_cross_for_values(const StrategyExtended& strategy) {
  check_cross_replica(strategy, "distribute_values_from_function", "merge_call()");
}

void reduce_items_to(StrategyExtended& strategy, const char* who, ReduceOp op,
                     const std::vector<ReduceToItem>& items, const CommunicationOptions& options) {
  check_cross_replica(strategy, who, "all_reduce()");
  const CommunicationOptions merged = strategy.communication_options().merged_with(options);
  const at::NoGradGuard no_grad;
  std::vector<ReducePair> pairs;
  std::vector<std::pair<const ReduceToItem*, size_t>> places;  // of the pairs' results
  for (const ReduceToItem& item : items) {
    check_structures(who, item.leaves, item.structures);
    for (size_t i = 0; i < item.leaves[0].size(); ++i) {
      const std::vector<Leaf> column = column_of(item.leaves, i);
      if (column[0].kind == Leaf::Kind::kTensor) {
        pairs.push_back({PerReplica<at::Tensor>(tensors_of(who, column)), *item.destinations});
        places.emplace_back(&item, i);
      } else if (column[0].kind == Leaf::Kind::kIndexedSlices) {
        std::vector<IndexedSlices> parts;
        for (const Leaf& leaf : column) parts.push_back(leaf.slices());
        const Mirrored<IndexedSlices> reduced = strategy.cross_device_ops().reduce(
            op, PerReplica<IndexedSlices>(std::move(parts)), *item.destinations, merged);
        for (size_t d = 0; d < reduced.size(); ++d) item.results[d][i].slices() = reduced[d];
      } else {
        refuse_scalar_column(op, column[0], /*has_axis=*/false);
        reduce_scalars(strategy, op, column, item.results[0][i], merged);
        for (const LeafList& result : item.results) {
          std::memcpy(result[i].data, item.results[0][i].data, item.results[0][i].bytes);
        }
      }
    }
  }
  const auto reduced = strategy.cross_device_ops().batch_reduce(op, pairs, merged);
  for (size_t p = 0; p < reduced.size(); ++p) {
    const auto& [item, leaf] = places[p];
    for (size_t d = 0; d < reduced[p].size(); ++d) item->results[d][leaf].tensor() = reduced[p][d];
  }
}

void reduce_plain_to(StrategyExtended& strategy, ReduceOp op, const std::vector<LeafList>& results,
                     const Destinations& destinations, bool is_mirrored) {
  reduce_plain(strategy, op, results[0], c10::nullopt, is_mirrored);
  for (size_t i = 0; i < results[0].size(); ++i) {
    const Leaf& first = results[0][i];
    if (first.kind == Leaf::Kind::kTensor && first.tensor().defined()) {
      const Mirrored<at::Tensor> copies =
          strategy.cross_device_ops().broadcast(first.tensor(), destinations);
      for (size_t d = 0; d < results.size(); ++d) results[d][i].tensor() = copies[d];
    } else if (first.kind == Leaf::Kind::kIndexedSlices) {
      const IndexedSlices slices = first.slices();
      const auto values = strategy.cross_device_ops().broadcast(slices.values(), destinations);
      const auto indices = strategy.cross_device_ops().broadcast(slices.indices(), destinations);
      for (size_t d = 0; d < results.size(); ++d) {
        results[d][i].slices() = IndexedSlices(values[d], indices[d], slices.dense_shape());
      }
    } else if (first.kind != Leaf::Kind::kTensor && first.kind != Leaf::Kind::kString) {
      for (size_t d = 1; d < results.size(); ++d) {
        std::memcpy(results[d][i].data, first.data, first.bytes);
      }
    }
  }
}

ReplicaContext* replica_of(const StrategyExtended& strategy) {
  const ContextFrame* frame = current_frame();
  return frame != nullptr && frame->services == &strategy ? frame->replica : nullptr;
}

void check_same_variable(const PerReplica<const VariableImpl*>& variables) {
  for (size_t i = 1; i < variables.size(); ++i) {
    if (variables[i] == variables[0]) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        message("ReplicaContext::update: local replica 0 updates ", variables[0]->describe(),
                ", but replica ", i, " updates ", variables[i]->describe(),
                variables[i]->describe() == variables[0]->describe()
                    ? ", a different variable of that name"
                    : "",
                ". All replicas must update the same variables in the same order."));
  }
}

std::vector<at::Tensor> local_values(const Variable& variable) {
  if (variable.impl()->has_components()) return variable.components();
  return {variable.value()};
}

VariableParts variable_parts(const StrategyExtended& strategy, const char* function,
                             const Variable& variable) {
  VariableImpl& impl = *variable.impl();
  if (!impl.services().is_ambient() && &impl.services() != &strategy) {
    refuse(function, message(impl.describe(), " belongs to ", impl.services().describe(),
                             not_to(strategy, impl.services()), ". Give it to its own strategy."));
  }
  if (!impl.has_components()) {
    return {VariableParts::Kind::kPlain, {impl.read(VariableImpl::Read::kCopy).detach()}};
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& component : impl.components()) parts.push_back(component.detach());
  const bool on_read = static_cast<int>(parts.size()) == strategy.num_local_replicas() &&
                       impl.options().synchronization == VariableSynchronization::kOnRead;
  if (on_read) return {VariableParts::Kind::kPerReplica, std::move(parts)};
  // It may become the result, which later writes must not change.
  parts[0] = parts[0].clone();
  return {impl.is_mirrored() ? VariableParts::Kind::kMirrored : VariableParts::Kind::kPlain,
          std::move(parts)};
}

}  // namespace tutti::internal
