// SPDX-License-Identifier: Apache-2.0
//
// MultiStepContext of tf.distribute: the outputs of the steps of one call of
// experimental_run_steps_on_iterator().

#pragma once

#include <any>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tutti/strategy/strategy.h"

namespace tutti::v1 {

/// A handle, cheap to copy. Thread-safe: replicas share it.
class MultiStepContext {
 public:
  using Outputs = std::map<std::string, at::Tensor>;
  using PerReplicaOutputs = std::map<std::string, PerReplica<at::Tensor>>;

  explicit MultiStepContext(Outputs initial = {});

  /// Keeps an output of this step, in place of that of an earlier step. In a replica, every replica
  /// calls it with its own tensor, and `reduce_op` combines them; it is required there. In
  /// cross-replica context a value per replica is combined if `reduce_op` is given.
  void set_last_step_output(const std::string& name, const at::Tensor& output,
                            std::optional<ReduceOp> reduce_op = std::nullopt) const;
  void set_last_step_output(const std::string& name, const PerReplica<at::Tensor>& output,
                            std::optional<ReduceOp> reduce_op = std::nullopt) const;

  /// Keeps any other value. In a replica, every replica calls it, and a PerReplica of the values is
  /// kept.
  template <class T>
  void set_non_tensor_output(const std::string& name, const T& output) const;

  /// Combined and plain outputs.
  Outputs last_step_outputs() const;

  /// Outputs that were set per replica, without a ReduceOp.
  PerReplicaOutputs last_step_per_replica_outputs() const;

  std::map<std::string, std::any> non_tensor_outputs() const;

 private:
  struct State {
    std::mutex mutex;
    Outputs outputs;
    PerReplicaOutputs per_replica;
    std::map<std::string, std::any> others;
  };

  void keep(const std::string& name, at::Tensor output) const;
  void keep_other(const std::string& name, std::any output) const;

  std::shared_ptr<State> state_;
};

template <class T>
void MultiStepContext::set_non_tensor_output(const std::string& name, const T& output) const {
  if (in_cross_replica_context()) return keep_other(name, output);
  get_replica_context()->merge_call(
      [this, &name](const auto&, const PerReplica<T>& outputs) { keep_other(name, outputs); },
      output);
}

}  // namespace tutti::v1
