// SPDX-License-Identifier: Apache-2.0
//
// What extended() of the old strategies returns: StrategyExtended with the old names.

#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tutti/compat/v1/multi_step_context.h"
#include "tutti/strategy/strategy.h"

namespace tutti::v1 {

/// A handle, cheap to copy; keeps its strategy alive. Thread-safe as tutti::StrategyExtended is.
class StrategyExtended {
 public:
  explicit StrategyExtended(tutti::Strategy strategy) : strategy_(std::move(strategy)) {}

  operator tutti::StrategyExtended&() const { return strategy_.extended(); }
  tutti::StrategyExtended* operator->() const { return &strategy_.extended(); }

  // ---- the same as in tutti::StrategyExtended

  const std::vector<DeviceSpec>& worker_devices() const { return it().worker_devices(); }
  const std::vector<DeviceSpec>& parameter_devices() const { return it().parameter_devices(); }
  auto worker_devices_by_replica() const { return it().worker_devices_by_replica(); }
  bool should_checkpoint() const { return it().should_checkpoint(); }
  bool should_save_summary() const { return it().should_save_summary(); }

  template <class F, class... A>
  auto call_for_each_replica(const F& fn, A&&... args) const {
    return it().call_for_each_replica(fn, std::forward<A>(args)...);
  }
  template <class V>
  auto reduce_to(ReduceOp op, const V& value, const Destinations& destinations,
                 const CommunicationOptions& options = {}) const {
    return it().reduce_to(op, value, destinations, options);
  }
  template <class T>
  auto batch_reduce_to(ReduceOp op,
                       const std::vector<std::pair<PerReplica<T>, Destinations>>& pairs,
                       const CommunicationOptions& options = {}) const {
    return it().batch_reduce_to(op, pairs, options);
  }
  auto batch_reduce_to(ReduceOp op,
                       std::initializer_list<std::pair<PerReplica<at::Tensor>, Destinations>> pairs,
                       const CommunicationOptions& options = {}) const {
    return it().batch_reduce_to(op, pairs, options);
  }
  template <class V>
  auto broadcast_to(const V& value, const Destinations& destinations) const {
    return it().broadcast_to(value, destinations);
  }
  template <class... A>
  auto update(A&&... args) const {
    return it().update(std::forward<A>(args)...);
  }
  template <class... A>
  auto update_non_slot(A&&... args) const {
    return it().update_non_slot(std::forward<A>(args)...);
  }
  Destinations non_slot_devices(const std::vector<Variable>& variables) const {
    return it().non_slot_devices(variables);
  }
  template <class V>
  auto value_container(const V& value) const {
    return it().value_container(value);
  }
  at::Tensor read_var(const Variable& variable) const { return it().read_var(variable); }
  bool variable_created_in_scope(const Variable& variable) const {
    return it().variable_created_in_scope(variable);
  }
  [[nodiscard]] auto colocate_vars_with(const Variable& variable) const {
    return it().colocate_vars_with(variable);
  }

  // ---- old names

  [[deprecated("use require_static_shapes")]] bool experimental_require_static_shapes() const {
    return it().require_static_shapes();
  }
  [[deprecated("use between_graph")]] bool experimental_between_graph() const {
    return it().between_graph();
  }
  [[deprecated("use should_init")]] bool experimental_should_init() const {
    return it().should_init();
  }

  /// Calls fn(context, inputs) in the scope of the strategy, `iterations` times, with the next step
  /// of the iterator each time. fn calls call_for_each_replica(), and sets outputs in the context.
  /// `initial_loop_values` are outputs for the case that no step sets them.
  template <class F, class Iterator>
  [[deprecated("write a loop")]] MultiStepContext experimental_run_steps_on_iterator(
      const F& fn, const Iterator& iterator, int iterations = 1,
      MultiStepContext::Outputs initial_loop_values = {}) const {
    return run_steps(fn, iterator, iterations, std::move(initial_loop_values));
  }

  /// The same, for the classes of v1/step.h.
  template <class F, class Iterator>
  MultiStepContext run_steps(const F& fn, const Iterator& iterator, int iterations,
                             MultiStepContext::Outputs initial_loop_values = {}) const {
    MultiStepContext context(std::move(initial_loop_values));
    const Scope scope = strategy_.scope();
    for (int i = 0; i < iterations; ++i) fn(context, iterator.get_next());
    return context;
  }

 private:
  tutti::StrategyExtended& it() const { return strategy_.extended(); }

  tutti::Strategy strategy_;
};

}  // namespace tutti::v1
