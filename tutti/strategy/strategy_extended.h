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
#include "tutti/group/input_progress.h"
#include "tutti/strategy/internal/variable_scopes.h"
#include "tutti/values/destinations.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/variable.h"

namespace tutti {

class ClusterResolver;
struct VariableDefinition;

namespace internal {
class VariableRegistry;
}

/// StrategyExtended::update(kUngrouped, ...) returns a vector instead of a Mirrored.
struct Ungrouped {};
inline constexpr Ungrouped kUngrouped;

/// Shared by all handles of one strategy. Thread-safe where it says so; run()
/// from several threads takes turns. Members that combine or place values need
/// cross-replica context, or a thread that is in no scope (kFailedPrecondition).
class StrategyExtended : public ReplicaHost, public std::enable_shared_from_this<StrategyExtended> {
 public:
  ~StrategyExtended() override;
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  /// "MirroredStrategy"; errors and logs begin with it.
  const std::string& name() const { return name_; }

  /// "MirroredStrategy(CPU:0, CPU:1)"
  std::string describe() const override;

  int num_replicas_in_sync() const override { return num_replicas_; }
  int num_local_replicas() const { return static_cast<int>(contexts_.size()); }

  /// The devices of the local replicas; one for each.
  const std::vector<DeviceSpec>& worker_devices() const { return devices_; }
  std::vector<std::vector<DeviceSpec>> worker_devices_by_replica() const;

  /// Where variables live.
  virtual const std::vector<DeviceSpec>& parameter_devices() const { return devices_; }

  /// All replicas' parameters lie in one memory (central storage).
  virtual bool shares_parameters() const { return false; }

  /// Null unless the strategy was made from a cluster.
  virtual const ClusterResolver* cluster_resolver() const { return nullptr; }

  // What a program that is written for every strategy asks.
  virtual bool require_static_shapes() const { return false; }
  virtual bool between_graph() const { return false; }
  virtual bool should_init() const { return true; }
  virtual bool should_checkpoint() const { return true; }
  virtual bool should_save_summary() const { return true; }
  virtual bool in_multi_worker_mode() const { return false; }

  // ---- input

  /// This process among those that run in lock step, each with the same number of replicas.
  virtual int num_workers() const { return 1; }
  virtual int worker_index() const { return 0; }

  /// What all replicas have in a step; the input ends at the first step where no replica has
  /// data. Called once for every step by every worker, also by one whose own data have
  /// ended, one step ahead by the thread that reads ahead. It must not wait for ever: a
  /// worker that drops its iterator calls it no more.
  virtual InputTotals add_up_input(const InputProgress& progress) {
    return {progress.local_replicas_with_data, progress.local_rows, progress.stop};
  }

  /// Asks the program to stop, on all workers after the same step: the machine will be taken away,
  /// say. Any thread, and signal handlers.
  void request_stop() { wants_to_stop_.store(true, std::memory_order_relaxed); }

  /// Whether some worker was asked to. Becomes true when a loop over a distributed dataset hands
  /// out a step, and in the same step on every worker: save what shall be saved and leave the loop.
  bool stop_requested() const { return stops_.load(std::memory_order_relaxed); }

  /// For the reader of the input.
  bool wants_to_stop() const { return wants_to_stop_.load(std::memory_order_relaxed); }
  void agree_to_stop() { stops_.store(true, std::memory_order_relaxed); }

  /// The iterator of a pass was dropped.
  virtual void end_input_pass(int64_t pass) { (void)pass; }

  /// A number that all workers agree on, given that of this one. All call it together.
  virtual uint64_t agree_on_seed(uint64_t mine) { return mine; }

  /// Bytes of every worker, in their order, given those of this one. All call it together.
  std::vector<at::Tensor> gather_from_workers(const at::Tensor& mine, std::string_view name) {
    return gather_from_workers(mine, name, communication_options_);
  }
  virtual std::vector<at::Tensor> gather_from_workers(const at::Tensor& mine, std::string_view name,
                                                      const CommunicationOptions& options) {
    (void)name;
    (void)options;
    return {mine};
  }

  /// Replaces the contents of a tensor by those that worker 0 has. All call it together.
  virtual void take_from_first_worker(const at::Tensor& tensor, std::string_view name) {
    (void)tensor;
    (void)name;
  }

  /// Numbers the passes over distributed datasets, which all workers begin in the same
  /// order. After a restored pass come those that followed it. Thread-safe.
  int64_t begin_input_pass() { return input_passes_.fetch_add(1); }
  void go_on_after_input_pass(int64_t pass);

  /// Contexts live as long as this object. Throws kInvalidArgument for a bad id.
  ReplicaContext& replica_context(int local_replica) const;

  /// Calls fn once for each local replica, concurrently, in its context.
  void call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn);

  // ---- combining and placing values

  /// The reduction of one component per local replica, over all replicas.
  /// Shapes and dtypes of the components must be equal.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& value) override;

  at::Tensor of_first_replica(const at::Tensor& local, const std::string& name) override;

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

  /// A copy of the tensor on each destination. A number is returned as it is, so that
  /// whoever takes it decides about its type.
  Mirrored<at::Tensor> broadcast_to(const at::Tensor& tensor, const Destinations& destinations);
  template <internal::Number T>
  T broadcast_to(T number, const Destinations&) const {
    return number;
  }

  // ---- variables

  /// Calls fn(variable, args...) for every copy of the variable in turn, on its device. In fn the
  /// variable means that copy alone; a PerReplica or Mirrored argument arrives as its component.
  /// Returns Mirrored of the results, or nothing. In a replica, all replicas must call it: copy i
  /// gets the arguments of replica i, and the function is replica 0's, so pass what differs.
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

  /// Where state that belongs to no single variable of the list shall live.
  virtual Destinations non_slot_devices(const std::vector<Variable>& variables) const;

  /// For ReplicaContext::update: the result for the copy of one local replica.
  template <class F, class... A>
  auto update_own(int local_replica, const Variable& variable, const F& fn, const A&... args);

  bool variable_created_in_scope(const Variable& variable) const;

  /// Whether a variable was ever made. Thread-safe.
  bool has_variables() const { return has_variables_.load(); }

  /// The variable that the tensor is a component of, if any. Thread-safe.
  std::optional<Variable> value_container(const at::Tensor& component) const;
  Variable value_container(const Variable& variable) const { return variable; }

  /// The components of a variable that synchronises on read combined; else a copy.
  at::Tensor read_var(const Variable& variable) const;

  /// While the result lives, variables made on this thread lie on the devices of
  /// `variable`, which must be one of this strategy.
  [[nodiscard]] internal::ColocationScope colocate_vars_with(const Variable& variable);

  // ---- for those who write strategies

  /// How many calls of call_for_each_replica have ended with an exception.
  virtual uint64_t failed_runs() const { return 0; }

  /// What sums gradients of all replicas.
  virtual std::unique_ptr<GradientReducer> make_gradient_reducer(
      std::vector<GradientBucket> buckets) {
    return cross_device_ops().make_gradient_reducer(std::move(buckets), communication_options_);
  }

  /// Memory for tensors that will be reduced.
  Arena& arena() { return cross_device_ops().arena(); }

  virtual CrossDeviceOps& cross_device_ops() = 0;

  /// Options of every call; those of a call win.
  const CommunicationOptions& communication_options() const { return communication_options_; }

  // The operations of replicas and variables, built on meet() and cross_device_ops().
  void all_reduce(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                  const std::string& structure, const CommunicationOptions& options,
                  CallSite site) override;
  void all_reduce_in_place(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                           const std::string& structure, const CommunicationOptions& options,
                           CallSite site) override;
  void all_gather(ReplicaContext& context, const LeafList& leaves, const std::string& structure,
                  int64_t axis, const CommunicationOptions& options, CallSite site) override;
  std::shared_ptr<VariableImpl> create_variable(const VariableCreation& creation) override;
  void combine_update(ReplicaContext& context, const VariableUpdate& update) override;

 protected:
  /// Local replica i runs on devices[i] and has the global id first_replica_id + i.
  StrategyExtended(std::string name, std::vector<DeviceSpec> devices, int first_replica_id,
                   int num_replicas, CommunicationOptions communication_options = {});

  std::vector<ReplicaContext*> contexts() const;

 private:
  virtual void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) = 0;
  virtual at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value);
  virtual at::Tensor do_gather(const PerReplica<at::Tensor>& value, int64_t axis);

  /// By default a mirrored variable, or one that synchronises on read.
  virtual std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition);

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
  CommunicationOptions communication_options_;
  std::atomic<int64_t> input_passes_{0};
  std::atomic<bool> has_variables_{false};
  std::atomic<bool> wants_to_stop_{false};
  std::atomic<bool> stops_{false};  // all workers know
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
  std::unique_ptr<internal::VariableRegistry> variables_;
};

}  // namespace tutti

#include "tutti/strategy/internal/extended_templates.h"  // IWYU pragma: export
