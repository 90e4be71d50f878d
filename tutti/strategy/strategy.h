// SPDX-License-Identifier: Apache-2.0
//
// The programming model: a Strategy runs one step function on every replica and
// combines what the replicas return. Make one with MirroredStrategy,
// OneDeviceStrategy or make_strategy(); write a new kind in strategy_extended.h.

#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/OptionalArrayRef.h>

#include "tutti/nest/nest.h"
#include "tutti/strategy/internal/replica_arguments.h"
#include "tutti/strategy/internal/strategy_values.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/variable.h"

namespace tutti {

class Scope;

/// Accepted by run() for programs that set them; they concern TPUs only.
struct RunOptions {
  bool enable_dynamic_batch_size = true;
  bool bucketizing_dynamic_shape = false;
};

/// What Strategy::distribute_values_from_function tells its function.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

/// A handle, cheap to copy; the strategy lives as long as one of them, or a scope.
class Strategy {
 public:
  /// Throws kInvalidArgument for a null pointer.
  explicit Strategy(std::shared_ptr<StrategyExtended> extended);
  Strategy(std::nullptr_t) = delete;

  StrategyExtended& extended() const { return *extended_; }

  /// Null unless the strategy was made from a cluster.
  const ClusterResolver* cluster_resolver() const { return extended_->cluster_resolver(); }

  int num_replicas_in_sync() const { return extended_->num_replicas_in_sync(); }

  /// Makes this the current strategy of the calling thread, in cross-replica
  /// context, for the life of the result. The same strategy may be entered again;
  /// another one, or a replica context, is kFailedPrecondition.
  [[nodiscard]] Scope scope() const;

  /// Calls fn inside scope() and returns its result.
  template <std::invocable F>
  auto scope(F&& fn) const;

  /// Calls fn once per replica, concurrently, and returns PerReplica of its
  /// results (nothing if it returns nothing).
  ///
  /// A PerReplica or Mirrored argument arrives as this replica's component;
  /// per-replica tuples arrive spread out if fn accepts that, else whole.
  /// Everything else arrives as const&. All replicas share fn, so it is called
  /// as const. An exception of fn is rethrown here with its type.
  template <class F, class... A>
    requires(!std::same_as<F, RunOptions>)
  auto run(const F& fn, A&&... args) const;
  template <class F, class... A>
  auto run(const RunOptions&, const F& fn, A&&... args) const {
    return run(fn, std::forward<A>(args)...);
  }

  /// One value from those of all replicas, leaf by leaf. Of a variable that synchronises
  /// on read the components are reduced; any other variable counts as a plain value.
  ///
  /// With axes, each replica's tensor is first reduced along them; kMean then
  /// divides by the number of elements of all replicas together, so that ragged
  /// batches are averaged right. A plain value is equal everywhere: kMean, kMin
  /// and kMax return it; kSum and kProduct over several replicas are
  /// kInvalidArgument. The mean of an integer tensor is a float tensor; that of a
  /// C++ integer is kInvalidArgument.
  template <class V>
  auto reduce(ReduceOp op, const V& value, at::OptionalIntArrayRef axis = c10::nullopt) const;

  /// The tensors of all replicas concatenated along `axis` in replica order. A
  /// plain value is returned as it is.
  template <class V>
  auto gather(const V& value, int64_t axis) const;

  /// The components of the local replicas; a plain value is its only component. Those of
  /// a variable share its memory.
  template <class V>
  auto local_results(V&& value) const;

  /// PerReplica of fn(ValueContext), called in replica order on this thread.
  template <class F>
  auto distribute_values_from_function(const F& fn) const;

  friend bool operator==(const Strategy& a, const Strategy& b) {
    return a.extended_ == b.extended_;
  }

 private:
  template <class V>
  auto reduce_nest(ReduceOp op, const V& value, at::OptionalIntArrayRef axis) const;

  std::shared_ptr<StrategyExtended> extended_;
};

/// Keeps a strategy current; made by Strategy::scope() only, and only on the stack.
class Scope {
 public:
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  void* operator new(size_t) = delete;

  const Strategy& strategy() const { return strategy_; }

 private:
  friend class Strategy;
  explicit Scope(Strategy strategy);

  Strategy strategy_;
  std::optional<internal::FrameScope> frame_;
};

/// The strategy whose scope or run the calling thread is in, else the default
/// strategy: one replica, no threads.
Strategy get_strategy();

/// True in the scope or run of a strategy other than the default one.
bool has_strategy();

/// True inside scope() and merge_call(), false inside run() and outside of all.
bool in_cross_replica_context();

/// The calling thread's replica; null in cross-replica context. Outside of any
/// scope it is the default strategy's only replica. `site` is the caller's line,
/// for errors.
ReplicaContext* get_replica_context(CallSite site = CallSite::current());

/// Makes a strategy current on this thread without a scope, until it is replaced
/// or cleared by nullopt. Inside a scope it is kFailedPrecondition.
void set_strategy(std::optional<Strategy> strategy);

/// Inside StrategyExtended::update the number of the copy that is being updated.
std::optional<int> get_update_replica_id();

// ---- implementation ---------------------------------------------------------

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
                "per-replica tuple may arrive whole or spread out; other arguments arrive as "
                "const&; a `mutable` lambda is not accepted, because all replicas share it)");
  if constexpr (Call::kCallable) {
    (internal::check_components(*extended_, "run", internal::component_count(args)), ...);
    using R = typename Call::Result;
    if constexpr (std::is_void_v<R>) {
      extended_->call_for_each_replica([&](ReplicaContext& context) {
        Call::apply(fn, static_cast<size_t>(context.local_replica_id()), args...);
      });
    } else {
      internal::Slots<R> slots(static_cast<size_t>(extended_->num_local_replicas()));
      extended_->call_for_each_replica([&](ReplicaContext& context) {
        const auto i = static_cast<size_t>(context.local_replica_id());
        slots[i].emplace(Call::apply(fn, i, args...));
      });
      return PerReplica<R>(internal::FromSlots{}, std::move(slots));
    }
  }
}

template <class V>
auto Strategy::reduce(ReduceOp op, const V& value, at::OptionalIntArrayRef axis) const {
  if constexpr (std::same_as<V, Variable>) {
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
                "Strategy::reduce: the value is no nest (tensor, IndexedSlices, arithmetic type, "
                "or tuple, pair, array, vector, optional, string-keyed map or plain struct of "
                "those; a struct has 1-16 fields and no base class, C array, bit-field, const or "
                "reference field)");
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
      internal::reduce_plain(*extended_, op, leaves_of(result), axis);
      return result;
    }
  }
}

template <class V>
auto Strategy::gather(const V& value, int64_t axis) const {
  using T = typename internal::component<V>::type;
  static_assert(Nest<T> || std::same_as<V, Variable>,
                "Strategy::gather: the value is no nest of tensors");
  if constexpr (std::same_as<V, Variable>) {
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
      internal::gather_plain(*extended_, leaves_of(value));
      return value;
    }
  }
}

template <class V>
auto Strategy::local_results(V&& value) const {
  using Plain = std::remove_cvref_t<V>;
  using T = std::conditional_t<std::same_as<Plain, Variable>, at::Tensor,
                               typename internal::component<Plain>::type>;
  std::vector<T> results;
  if constexpr (std::same_as<Plain, Variable>) {
    results = value.components();
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
