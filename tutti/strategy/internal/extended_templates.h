// SPDX-License-Identifier: Apache-2.0
//
// The templates of StrategyExtended; included by its header.

#pragma once

#include <concepts>
#include <span>
#include <utility>
#include <vector>

#include "tutti/strategy/internal/replica_arguments.h"
#include "tutti/strategy/internal/strategy_values.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {
namespace internal {

/// A result that merge_call returns whole to every replica, although it has components.
template <class T>
struct Whole {
  T value;
};

/// Whether fn can be called with one copy's share of the arguments.
template <class F, class... A>
inline constexpr bool is_updater = std::is_invocable_v<const F&, Share<const A&>...>;

/// What that call returns.
template <class F, class... A>
using UpdateResult = std::decay_t<std::invoke_result_t<const F&, Share<const A&>...>>;

/// Whether that call returns nothing, or is not possible.
template <class F, class... A>
constexpr bool has_no_result() {
  if constexpr (is_updater<F, A...>) return std::is_void_v<UpdateResult<F, A...>>;
  return true;
}

/// Calls fn in the context of each local replica with its share of the arguments; `function` is the
/// caller's name, for errors.
template <class F, class... A>
auto run_replicas(StrategyExtended& strategy, [[maybe_unused]] const char* function, const F& fn,
                  A&&... args) {
  using Call = ReplicaCall<F, A...>;
  using R = typename Call::Result;
  (check_components(strategy, function, component_count(args)), ...);
  if constexpr (std::is_void_v<R>) {
    strategy.call_in_contexts([&](ReplicaContext& context) {
      Call::apply(fn, static_cast<size_t>(context.local_replica_id()), args...);
    });
  } else {
    Slots<R> slots(static_cast<size_t>(strategy.num_local_replicas()));
    strategy.call_in_contexts([&](ReplicaContext& context) {
      const auto i = static_cast<size_t>(context.local_replica_id());
      slots[i].emplace(Call::apply(fn, i, args...));
    });
    return PerReplica<R>(FromSlots{}, std::move(slots));
  }
}

}  // namespace internal

// ---- call_for_each_replica ------------------------------------------------------

template <class F, class... A>
auto StrategyExtended::call_for_each_replica(const F& fn, A&&... args) {
  static_assert(internal::ReplicaCall<F, A...>::kCallable,
                "StrategyExtended::call_for_each_replica: fn cannot be called with one replica's "
                "share of these arguments; a `mutable` lambda is not accepted, because all "
                "replicas share it (call_in_contexts() passes the ReplicaContext)");
  if constexpr (internal::ReplicaCall<F, A...>::kCallable) {
    return internal::run_replicas(*this, "extended().call_for_each_replica", fn,
                                  std::forward<A>(args)...);
  }
}

// ---- reduce_to ------------------------------------------------------------------

template <class V>
auto StrategyExtended::reduce_to(ReduceOp op, const V& value, const Destinations& destinations,
                                 const CommunicationOptions& options) {
  if constexpr (std::derived_from<V, Variable>) {
    return internal::with_components(*this, "reduce_to", value, [&](const auto& parts) {
      return reduce_to(op, parts, destinations, options);
    });
  } else {
    using T = typename internal::component<V>::type;
    static_assert(Nest<T>,
                  "StrategyExtended::reduce_to: the value is neither a nest of tensors, "
                  "IndexedSlices and numbers nor a Variable");
    if constexpr (internal::is_per_replica<V>) {
      return std::move(
          batch_reduce_nests<T>("extended().reduce_to", op, {{value, destinations}}, options)[0]);
    } else {
      std::vector<T> results;
      for (size_t i = 0; i < destinations.size(); ++i) {
        if constexpr (internal::is_mirrored<V>) {
          results.push_back(value[0]);
        } else {
          results.push_back(value);
        }
      }
      std::vector<LeafList> leaves;
      for (T& result : results) leaves.push_back(leaves_of(result));
      internal::reduce_plain_to(*this, op, leaves, destinations, internal::is_mirrored<V>);
      return Mirrored<T>(std::move(results));
    }
  }
}

template <class T>
std::vector<Mirrored<T>> StrategyExtended::batch_reduce_to(
    ReduceOp op, const std::vector<std::pair<PerReplica<T>, Destinations>>& pairs,
    const CommunicationOptions& options) {
  return batch_reduce_nests("extended().batch_reduce_to", op, pairs, options);
}

template <class T>
std::vector<Mirrored<T>> StrategyExtended::batch_reduce_nests(
    const char* who, ReduceOp op, const std::vector<std::pair<PerReplica<T>, Destinations>>& pairs,
    const CommunicationOptions& options) {
  static_assert(Nest<T>,
                "StrategyExtended::batch_reduce_to: the values are not nests of tensors, "
                "IndexedSlices and numbers");
  std::vector<std::vector<T>> results;
  results.reserve(pairs.size());
  std::vector<internal::ReduceToItem> items;
  for (const auto& [value, destinations] : pairs) {
    internal::check_components(*this, who, value.size());
    internal::ReduceToItem item{.destinations = &destinations};
    item.leaves = internal::leaves_by_replica(value, item.structures);
    results.emplace_back(destinations.size(), value[0]);
    for (T& result : results.back()) item.results.push_back(leaves_of(result));
    items.push_back(std::move(item));
  }
  internal::reduce_items_to(*this, who, op, items, options);
  std::vector<Mirrored<T>> mirrored;
  for (std::vector<T>& each : results) mirrored.emplace_back(std::move(each));
  return mirrored;
}

// ---- update ---------------------------------------------------------------------

// Calls fn(share of args...) for each device and collects the results.
template <class F, class... A>
auto StrategyExtended::update_slots(const char* function, const std::vector<DeviceSpec>& devices,
                                    const F& fn, const A&... args) {
  using R = internal::UpdateResult<F, A...>;
  const auto call = [&]([[maybe_unused]] size_t i) -> decltype(auto) {
    return fn(internal::share<const A&>(args, i)...);
  };
  const auto sizes = {size_t{0}, internal::component_count(args)...};
  if constexpr (std::is_void_v<R>) {
    update_components(function, devices, sizes, [&](size_t i) { call(i); });
  } else {
    std::vector<R> results;
    update_components(function, devices, sizes, [&](size_t i) { results.push_back(call(i)); });
    return results;
  }
}

template <class F, class... A>
auto StrategyExtended::update(Ungrouped, const Variable& variable, const F& fn, const A&... args) {
  static_assert(internal::is_updater<F, Variable, A...>,
                "StrategyExtended::update: fn cannot be called with the variable and one copy's "
                "share of the arguments; a `mutable` lambda is not accepted");
  if constexpr (internal::is_updater<F, Variable, A...>) {
    return update_copies(variable, fn, args...);
  }
}

template <class F, class... A>
auto StrategyExtended::update_copies(const Variable& variable, const F& fn, const A&... args) {
  using R = internal::UpdateResult<F, Variable, A...>;
  check_variable("update", variable);
  ReplicaContext* const context = internal::replica_of(*this);
  if (context == nullptr) return update_slots("update", variable.devices(), fn, variable, args...);
  const auto merged = [&](const auto& strategy, const PerReplica<const VariableImpl*>& variables,
                          const PerReplica<std::decay_t<internal::Share<const A&>>>&... shares) {
    StrategyExtended& extended = strategy.extended();
    internal::check_same_variable(variables);
    if constexpr (std::is_void_v<R>) {
      extended.update_slots("update", variable.devices(), fn, variable, shares...);
    } else {
      return internal::Whole<std::vector<R>>{
          extended.update_slots("update", variable.devices(), fn, variable, shares...)};
    }
  };
  const VariableImpl* const impl = variable.impl().get();
  const auto local = static_cast<size_t>(context->local_replica_id());
  if constexpr (std::is_void_v<R>) {
    context->merge_call(merged, impl, internal::share<const A&>(args, local)...);
  } else {
    return context->merge_call(merged, impl, internal::share<const A&>(args, local)...).value;
  }
}

// If fn cannot be called, the other update() reports it.
template <class F, class... A>
auto StrategyExtended::update(const Variable& variable, const F& fn, const A&... args) {
  if constexpr (internal::has_no_result<F, Variable, A...>()) {
    update(kUngrouped, variable, fn, args...);
  } else {
    return Mirrored(update(kUngrouped, variable, fn, args...));
  }
}

template <class F, class... A>
auto StrategyExtended::update_own(int local_replica, const Variable& variable, const F& fn,
                                  const A&... args) {
  if constexpr (internal::has_no_result<F, Variable, A...>()) {
    update(kUngrouped, variable, fn, args...);
  } else {
    using R = internal::UpdateResult<F, Variable, A...>;
    std::vector<R> results = update(kUngrouped, variable, fn, args...);
    // With one copy for all replicas, every replica gets its result.
    const auto i = static_cast<size_t>(local_replica);
    return R(std::move(results[i < results.size() ? i : 0]));
  }
}

template <class F, class... A>
auto StrategyExtended::update_non_slot(Ungrouped, const Destinations& colocate_with, const F& fn,
                                       const A&... args) {
  static_assert(internal::is_updater<F, A...>,
                "StrategyExtended::update_non_slot: fn cannot be called with one device's share "
                "of the arguments; a `mutable` lambda is not accepted");
  if constexpr (internal::is_updater<F, A...>) {
    return update_slots("update_non_slot", colocate_with.devices(), fn, args...);
  }
}

template <class F, class... A>
auto StrategyExtended::update_non_slot(const Destinations& colocate_with, const F& fn,
                                       const A&... args) {
  if constexpr (internal::has_no_result<F, A...>()) {
    update_non_slot(kUngrouped, colocate_with, fn, args...);
  } else {
    return Mirrored(update_non_slot(kUngrouped, colocate_with, fn, args...));
  }
}

}  // namespace tutti
