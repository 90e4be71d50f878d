// SPDX-License-Identifier: Apache-2.0
//
// The extension point: what makes one strategy differ from another. Users call
// Strategy (strategy.h), which checks and unpacks; an implementation works on
// whole functions and lists of tensors. LocalExtended (local_extended.h) does it
// with threads and CrossDeviceOps, and is the base of the in-process strategies.

#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/function_ref.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/device/device_spec.h"
#include "tutti/group/worker_group.h"
#include "tutti/strategy/internal/variable_scopes.h"
#include "tutti/strategy/strategy_traits.h"
#include "tutti/values/destinations.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/variable.h"

namespace tutti {

struct VariableDefinition;

namespace internal {
class VariableRegistry;
}

/// StrategyExtended::update(kUngrouped, ...) returns a vector instead of a Mirrored.
struct Ungrouped {};
inline constexpr Ungrouped kUngrouped;

/// Shared by all handles of one strategy. Thread-safe where stated; several threads that call run()
/// take turns. Members that combine or place values must be called in cross-replica context or on a
/// thread outside of any scope; elsewhere they throw kFailedPrecondition.
class StrategyExtended : public StrategyServices,
                         public std::enable_shared_from_this<StrategyExtended> {
 public:
  ~StrategyExtended() override;
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  /// "MirroredStrategy"; errors and logs begin with it.
  const std::string& name() const { return name_; }

  /// "MirroredStrategy(CPU:0, CPU:1)"
  std::string describe() const override;

  int num_replicas_in_sync() const final { return num_replicas_; }
  int num_local_replicas() const { return static_cast<int>(contexts_.size()); }

  /// The devices of the local replicas; one for each.
  const std::vector<DeviceSpec>& worker_devices() const { return devices_; }
  std::vector<std::vector<DeviceSpec>> worker_devices_by_replica() const;

  /// The constant properties: where variables live, and what programs written for every strategy
  /// ask for.
  const StrategyTraits& traits() const { return traits_; }
  const std::vector<DeviceSpec>& parameter_devices() const { return traits_.parameter_devices; }
  bool shares_parameters() const { return traits_.shares_parameters; }
  bool is_ambient() const final { return traits_.is_ambient; }
  const ClusterResolver* cluster_resolver() const { return traits_.cluster_resolver.get(); }
  bool require_static_shapes() const { return traits_.require_static_shapes; }
  bool between_graph() const { return traits_.between_graph; }
  bool should_init() const { return traits_.should_init; }
  bool should_checkpoint() const { return traits_.should_checkpoint; }
  bool should_save_summary() const { return traits_.should_save_summary; }
  bool in_multi_worker_mode() const { return traits_.in_multi_worker_mode; }

  /// For the strategies of compat/: changes what their names mean. Call it before the strategy is
  /// used by other threads.
  void set_compat(const CompatTraits& compat) { traits_.compat = compat; }

  /// The workers that run in lock step with this one; a group of one if there are no others.
  WorkerGroup& workers() const { return *traits_.workers; }

  /// Whether all replicas are threads of this process.
  bool has_all_replicas() const { return num_local_replicas() == num_replicas_; }

  // ---- input

  /// Asks the program to stop, on all workers after the same step, for example because the machine
  /// is about to be preempted. May be called from any thread and from signal handlers.
  void request_stop() { wants_to_stop_.store(true, std::memory_order_relaxed); }

  /// Whether some worker was asked to stop. Becomes true when a loop over a distributed dataset
  /// hands out a step, in the same step on every worker: save your state and leave the loop.
  bool stop_requested() const { return stops_.load(std::memory_order_relaxed); }

  /// For the reader of the input.
  bool wants_to_stop() const { return wants_to_stop_.load(std::memory_order_relaxed); }
  void agree_to_stop() { stops_.store(true, std::memory_order_relaxed); }

  /// Numbers the passes over distributed datasets, which all workers begin in the same
  /// order. After a restored pass come those that followed it. Thread-safe.
  int64_t begin_input_pass() { return workers().begin_input_pass(); }
  void go_on_after_input_pass(int64_t pass) { workers().go_on_after_input_pass(pass); }

  /// Contexts live as long as this object. Throws kInvalidArgument for a bad id.
  ReplicaContext& replica_context(int local_replica) const;

  /// Strategy::run. Calls fn once per replica, concurrently, with this replica's components of the
  /// arguments, and returns PerReplica of its results, or nothing.
  template <class F, class... A>
  auto call_for_each_replica(const F& fn, A&&... args);

  /// Calls fn once for each local replica, concurrently, in its context: the untyped form of
  /// call_for_each_replica().
  void call_in_contexts(FunctionRef<void(ReplicaContext&)> fn);

  // ---- combining and placing values

  /// The reduction of one component per local replica, over all replicas.
  /// Shapes and dtypes of the components must be equal.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& value) final;

  at::Tensor of_first_replica(const at::Tensor& local, const std::string& name) final;

  /// The concatenation along `axis` (0 or more), over all replicas.
  at::Tensor gather(const PerReplica<at::Tensor>& value, int64_t axis);

  /// Strategy::reduce, with the result on each destination. The value is a nest per
  /// replica or mirrored, a variable, or a plain nest; a variable that is a destination
  /// is not changed.
  template <class V>
  auto reduce_to(ReduceOp op, const V& value, const Destinations& destinations,
                 const CommunicationOptions& options = {});

  /// reduce_to of each pair, in their order; tensors are reduced together.
  template <class T>
  std::vector<Mirrored<T>> batch_reduce_to(
      ReduceOp op, const std::vector<std::pair<PerReplica<T>, Destinations>>& pairs,
      const CommunicationOptions& options = {});
  std::vector<Mirrored<at::Tensor>> batch_reduce_to(
      ReduceOp op, std::initializer_list<std::pair<PerReplica<at::Tensor>, Destinations>> pairs,
      const CommunicationOptions& options = {});

  /// A copy of the tensor on each destination. A number is returned unchanged, so that its user
  /// decides its type.
  Mirrored<at::Tensor> broadcast_to(const at::Tensor& tensor, const Destinations& destinations);
  template <internal::Number T>
  T broadcast_to(T number, const Destinations&) const {
    return number;
  }

  // ---- variables

  /// Calls fn(variable, args...) for every copy of the variable in turn, on its device. In fn the
  /// variable means that copy only; a PerReplica or Mirrored argument arrives as its component.
  /// Returns Mirrored of the results, or nothing. In a replica, all replicas must call it: copy i
  /// gets the arguments of replica i, and the function is replica 0's: pass what differs
  /// as arguments.
  template <class F, class... A>
  auto update(const Variable& variable, const F& fn, const A&... args);

  /// The same; returns a vector of the results.
  template <class F, class... A>
  auto update(Ungrouped, const Variable& variable, const F& fn, const A&... args);

  /// Calls fn(args...) once for each device of non_slot_devices(), as update() does.
  template <class F, class... A>
  auto update_non_slot(const Destinations& colocate_with, const F& fn, const A&... args);
  template <class F, class... A>
  auto update_non_slot(Ungrouped, const Destinations& colocate_with, const F& fn, const A&... args);

  /// The devices for state that does not belong to a single variable of the list.
  virtual Destinations non_slot_devices(const std::vector<Variable>& variables) const;

  /// For ReplicaContext::update: the result for the copy of one local replica.
  template <class F, class... A>
  auto update_own(int local_replica, const Variable& variable, const F& fn, const A&... args);

  bool variable_created_in_scope(const Variable& variable) const;

  /// Whether any variable was ever made. Thread-safe.
  bool has_variables() const { return has_variables_.load(); }

  /// The variable that the tensor is a component of, if any. Thread-safe.
  std::optional<Variable> value_container(const at::Tensor& component) const;
  Variable value_container(const Variable& variable) const { return variable; }

  /// The combined components if the variable synchronises on read, otherwise a copy of its value.
  at::Tensor read_var(const Variable& variable) const;

  /// While the result lives, variables made on this thread are placed on the devices of
  /// `variable`, which must belong to this strategy.
  [[nodiscard]] internal::ColocationScope colocate_vars_with(const Variable& variable);

  // ---- for authors of strategies

  /// How many calls of call_in_contexts have ended with an exception.
  virtual uint64_t failed_runs() const { return 0; }

  /// Makes the object that sums the gradients of all replicas.
  std::unique_ptr<GradientReducer> make_gradient_reducer(std::vector<GradientBucket> buckets) {
    return cross_device_ops().make_gradient_reducer(std::move(buckets), communication_options());
  }

  /// Provides memory for tensors that will be reduced.
  Arena& arena() { return cross_device_ops().arena(); }

  virtual CrossDeviceOps& cross_device_ops() = 0;

  /// Defaults of every call; options of a call take precedence.
  const CommunicationOptions& communication_options() const {
    return traits_.communication_options;
  }

  // The operations of replicas and variables, built on meet() and cross_device_ops().
  void all_reduce(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                  const std::string& structure, const CommunicationOptions& options,
                  CallSite site) final;
  void all_reduce_in_place(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                           const std::string& structure, const CommunicationOptions& options,
                           CallSite site) final;
  void all_gather(ReplicaContext& context, const LeafList& leaves, const std::string& structure,
                  int64_t axis, const CommunicationOptions& options, CallSite site) final;
  std::shared_ptr<VariableImpl> create_variable(const VariableCreation& creation) final;
  void combine_update(ReplicaContext& context, const VariableUpdate& update) final;

 protected:
  /// Local replica i runs on devices[i]; replicas are numbered over all workers, in their order.
  StrategyExtended(std::string name, std::vector<DeviceSpec> devices, StrategyTraits traits = {});

  std::vector<ReplicaContext*> contexts() const;

 private:
  virtual void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) = 0;

  /// By default makes a mirrored variable, or one that synchronises on read.
  virtual std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition,
                                                           const at::Tensor& initial_value);

  std::shared_ptr<VariableImpl> make_variable(const VariableOptions& options,
                                              const at::Tensor& initial_value,
                                              const std::vector<DeviceSpec>& devices);
  std::shared_ptr<VariableImpl> create_in_replica(ReplicaContext& context,
                                                  const VariableCreation& creation);
  void update_components(const char* function, const std::vector<DeviceSpec>& devices,
                         std::initializer_list<size_t> argument_sizes,
                         FunctionRef<void(size_t component)> fn);
  void check_variable(const char* function, const Variable& variable) const;
  template <class T>
  std::vector<Mirrored<T>> batch_reduce_nests(
      const char* who, ReduceOp op,
      const std::vector<std::pair<PerReplica<T>, Destinations>>& pairs,
      const CommunicationOptions& options);
  template <class F, class... A>
  auto update_copies(const Variable& variable, const F& fn, const A&... args);
  template <class F, class... A>
  auto update_slots(const char* function, const std::vector<DeviceSpec>& devices, const F& fn,
                    const A&... args);

  std::string name_;
  std::vector<DeviceSpec> devices_;
  int num_replicas_;
  StrategyTraits traits_;
  std::atomic<bool> has_variables_{false};
  std::atomic<bool> wants_to_stop_{false};
  std::atomic<bool> stops_{false};  // all workers have agreed to stop
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
  std::unique_ptr<internal::VariableRegistry> variables_;
};

}  // namespace tutti

#include "tutti/strategy/internal/extended_templates.h"  // IWYU pragma: export
