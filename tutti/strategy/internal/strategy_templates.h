// SPDX-License-Identifier: Apache-2.0
//
// The member templates of Strategy; included by strategy.h.

#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/strategy/strategy.h"

namespace tutti {

template <std::invocable F>
auto Strategy::scope(F&& fn) const {
  const Scope entered = scope();
  return std::invoke(std::forward<F>(fn));
}

template <class F, class... A>
  requires(!std::same_as<F, RunOptions>)
auto Strategy::run(const F& fn, A&&... args) const {
  using Call = internal::ReplicaCall<F, A...>;
  static_assert(Call::kCallable,
                "Strategy::run: fn cannot be called with one replica's share of these arguments (a "
                "per-replica tuple may arrive whole or spread out; other arguments, such as the "
                "elements of a dataset that is not distributed, arrive whole on every replica, as "
                "const&: give those of distribute_dataset(); a `mutable` lambda is not accepted, "
                "because all replicas share it)");
  if constexpr (Call::kCallable) {
    return internal::run_replicas(*extended_, "run", fn, std::forward<A>(args)...);
  }
}

template <class V>
auto Strategy::reduce(ReduceOp op, const V& value, at::OptionalIntArrayRef axis) const {
  if constexpr (std::derived_from<V, Variable>) {
    return internal::with_components(*extended_, "reduce", value,
                                     [&](const auto& parts) { return reduce(op, parts, axis); });
  } else {
    return reduce_nest(op, value, axis);
  }
}

template <class V>
auto Strategy::reduce_nest(ReduceOp op, const V& value, at::OptionalIntArrayRef axis) const {
  using T = typename internal::component<V>::type;
  static_assert(Nest<T>,
                "Strategy::reduce: the value is not a nest (tensor, IndexedSlices, arithmetic "
                "type, or tuple, pair, array, vector, optional, string-keyed map or plain struct "
                "of those; a struct has 1-16 fields and no base class, C array, bit-field, const "
                "or reference field)");
  if constexpr (Nest<T>) {
    if constexpr (internal::is_per_replica<V>) {
      internal::check_components(*extended_, "reduce", value.size());
      std::vector<std::string> structures;
      const auto leaves = internal::leaves_by_replica(value, structures);
      T result = value[0];
      internal::reduce_per_replica(*extended_, op, leaves, structures, leaves_of(result), axis);
      return result;
    } else {
      T result = [&]() -> T {
        if constexpr (internal::is_mirrored<V>) {
          return value[0];
        } else {
          return value;
        }
      }();
      internal::reduce_plain(*extended_, op, leaves_of(result), axis, internal::is_mirrored<V>);
      return result;
    }
  }
}

template <class V>
auto Strategy::gather(const V& value, int64_t axis) const {
  using T = typename internal::component<V>::type;
  static_assert(Nest<T> || std::derived_from<V, Variable>,
                "Strategy::gather: the value is not a nest of tensors");
  if constexpr (std::derived_from<V, Variable>) {
    return internal::with_components(*extended_, "gather", value,
                                     [&](const auto& parts) { return gather(parts, axis); });
  } else if constexpr (Nest<T>) {
    if constexpr (internal::is_per_replica<V> || internal::is_mirrored<V>) {
      internal::check_components(*extended_, "gather", value.size());
      std::vector<std::string> structures;
      const auto leaves = internal::leaves_by_replica(value, structures);
      T result = value[0];
      internal::gather_per_replica(*extended_, leaves, structures, leaves_of(result), axis);
      return result;
    } else {
      T result = value;
      internal::gather_plain(*extended_, leaves_of(result), axis);
      return result;
    }
  }
}

template <class V>
auto Strategy::local_results(V&& value) const {
  using Plain = std::remove_cvref_t<V>;
  using T = std::conditional_t<std::derived_from<Plain, Variable>, at::Tensor,
                               typename internal::component<Plain>::type>;
  std::vector<T> results;
  if constexpr (std::derived_from<Plain, Variable>) {
    results = internal::local_values(value);
  } else if constexpr (internal::is_per_replica<Plain> && !std::is_lvalue_reference_v<V>) {
    for (T& each : value) results.push_back(std::move(each));
  } else if constexpr (internal::is_per_replica<Plain> || internal::is_mirrored<Plain>) {
    for (const T& each : value) results.push_back(each);
  } else {
    results.push_back(std::forward<V>(value));
  }
  return results;
}

template <class F>
auto Strategy::distribute_datasets_from_function(const F& dataset_fn,
                                                 const InputOptions& options) const {
  static_assert(std::is_invocable_v<const F&, const InputContext&>,
                "Strategy::distribute_datasets_from_function: dataset_fn must accept a "
                "tutti::InputContext and return a tutti::data::Dataset");
  using T = typename std::decay_t<std::invoke_result_t<const F&, const InputContext&>>::value_type;
  return DistributedDataset<T>(internal::distribute_pipelines(
      extended_, [&](const InputContext& context) { return dataset_fn(context).node(); }, options));
}

template <class F>
auto Strategy::distribute_values_from_function(const F& fn) const {
  static_assert(std::is_invocable_v<const F&, ValueContext>,
                "Strategy::distribute_values_from_function: fn must accept a tutti::ValueContext");
  using R = std::decay_t<std::invoke_result_t<const F&, ValueContext>>;
  internal::check_cross_for_values(*extended_);
  internal::Slots<R> slots(static_cast<size_t>(extended_->num_local_replicas()));
  for (size_t i = 0; i < slots.size(); ++i) {
    const ReplicaContext& context = extended_->replica_context(static_cast<int>(i));
    slots[i].emplace(
        fn(ValueContext{context.replica_id_in_sync_group(), context.num_replicas_in_sync()}));
  }
  return PerReplica<R>(internal::FromSlots{}, std::move(slots));
}

}  // namespace tutti
