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
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/OptionalArrayRef.h>

#include "tutti/nest/nest.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/internal/replica_arguments.h"
#include "tutti/strategy/internal/strategy_values.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/variable.h"

namespace tutti {

class ClusterSpec;
class Scope;

/// Accepted by run() for programs that set them; they only affect TPUs. A plain value.
struct RunOptions {
  bool enable_dynamic_batch_size = true;
  bool bucketizing_dynamic_shape = false;
};

/// The argument of the function given to Strategy::distribute_values_from_function. A plain value.
struct ValueContext {
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

/// A handle, cheap to copy; the strategy lives as long as a handle or a scope of it exists.
/// Thread-safe as StrategyExtended is; assigning to a handle, or configure(), must not overlap
/// other uses of that handle.
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
  /// in the scope of a different strategy, or in a replica, it throws kFailedPrecondition.
  [[nodiscard]] Scope scope() const;

  /// Calls fn inside scope() and returns its result.
  template <std::invocable F>
  auto scope(F&& fn) const;

  /// Calls fn once per replica, concurrently, and returns PerReplica of its
  /// results (nothing if it returns nothing).
  ///
  /// A PerReplica or Mirrored argument arrives as this replica's component;
  /// per-replica tuples arrive spread out if fn accepts that, otherwise whole.
  /// Everything else arrives as const&. All replicas share fn, so it is called
  /// as const. An exception thrown by fn is rethrown here with its type.
  template <class F, class... A>
    requires(!std::same_as<F, RunOptions>)
  auto run(const F& fn, A&&... args) const;
  template <class F, class... A>
  auto run(const RunOptions&, const F& fn, A&&... args) const {
    return run(fn, std::forward<A>(args)...);
  }

  /// Reduces the values of all replicas to one, leaf by leaf. If a variable synchronises
  /// on read, its components are reduced; any other variable counts as a plain value.
  ///
  /// With axes, each replica's tensor is first reduced along them; kMean then
  /// divides by the number of elements of all replicas together, so that ragged
  /// batches are averaged correctly. A plain value is equal on all replicas: kMean, kMin
  /// and kMax return it; kSum and kProduct over several replicas throw
  /// kInvalidArgument. With several workers each has its own plain value, and these are
  /// reduced; Mirrored values are equal on all workers too. The mean of an integer tensor is a
  /// float tensor; the mean of a C++ integer throws kInvalidArgument.
  template <class V>
  auto reduce(ReduceOp op, const V& value, at::OptionalIntArrayRef axis = c10::nullopt) const;
  template <class V>
  auto reduce(ReduceOp op, const V& value, std::nullopt_t) const {
    return reduce(op, value, at::OptionalIntArrayRef());
  }

  /// The tensors of all replicas, concatenated along `axis` in replica order. A plain value is
  /// returned unchanged; with several workers, the plain values of all workers are concatenated.
  template <class V>
  auto gather(const V& value, int64_t axis) const;

  /// The components of the local replicas; a plain value is its only component, as is the value of
  /// a variable without components. Components of a variable share its memory.
  template <class V>
  auto local_results(V&& value) const;

  /// PerReplica of fn(ValueContext), called in replica order on this thread.
  template <class F>
  auto distribute_values_from_function(const F& fn) const;

  // ---- input

  /// Splits a dataset of global batches over the replicas of all workers, according to its
  /// AutoShardPolicy; the outcome is logged. See docs/guide/data.md.
  template <class T>
  DistributedDataset<T> distribute_dataset(const data::Dataset<T>& dataset,
                                           const InputOptions& options = {}) const {
    return DistributedDataset<T>(internal::distribute_pipeline(extended_, dataset.node(), options));
  }

  /// Calls dataset_fn(InputContext) once for this worker, or for each of its replicas. It
  /// returns a dataset of batches for single replicas, which are neither split nor
  /// sharded: in each step local replica i takes the i-th of the next elements.
  template <class F>
  auto distribute_datasets_from_function(const F& dataset_fn,
                                         const InputOptions& options = {}) const;

  /// A dataset of the rows of tensors, which are copied to the host's memory.
  template <class T>
  auto make_tensor_dataset(T rows) const {
    return data::Dataset<data::internal::RowOf<T>>(
        data::make_tensor_slices(internal::host_copy(data::to_element(std::move(rows)))));
  }

  friend bool operator==(const Strategy& a, const Strategy& b) {
    return a.extended_ == b.extended_;
  }

 protected:
  /// For configure() of derived handles: makes this handle refer to the strategy of one worker,
  /// with the devices and options it has now, and waits for the other workers. Throws
  /// kFailedPrecondition if the strategy is in use or can only run in one process. `caller` begins
  /// the message.
  void join_cluster(const char* caller, const ClusterSpec& cluster_spec,
                    const std::string& task_type, int task_id);

 private:
  template <class V>
  auto reduce_nest(ReduceOp op, const V& value, at::OptionalIntArrayRef axis) const;

  std::shared_ptr<StrategyExtended> extended_;
};

/// Keeps a strategy current; made only by Strategy::scope(), and only on the stack. An object
/// belongs to the thread that makes it.
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

/// The strategy whose scope or run the calling thread is in, otherwise the default
/// strategy: one replica, no threads.
Strategy get_strategy();

/// True in the scope or run of a strategy other than the default one.
bool has_strategy();

/// True inside scope() and merge_call(), false inside run() and outside of any strategy.
bool in_cross_replica_context();

/// The calling thread's replica; null in cross-replica context. Outside of any
/// scope it is the default strategy's only replica. `site` is the caller's line,
/// for errors.
ReplicaContext* get_replica_context(CallSite site = CallSite::current());

/// Makes a strategy current on this thread without a scope, until it is replaced
/// or cleared by nullopt. Throws kFailedPrecondition inside a scope.
void set_strategy(std::optional<Strategy> strategy);

/// Inside StrategyExtended::update, the index of the copy that is being updated.
std::optional<int> get_update_replica_id();

}  // namespace tutti

#include "tutti/strategy/internal/strategy_templates.h"  // IWYU pragma: export
