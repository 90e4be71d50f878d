// SPDX-License-Identifier: Apache-2.0

#include "tutti/compat/v1/multi_step_context.h"

#include "tutti/base/error.h"

namespace tutti::v1 {

MultiStepContext::MultiStepContext(Outputs initial) : state_(std::make_shared<State>()) {
  state_->outputs = std::move(initial);
}

void MultiStepContext::set_last_step_output(const std::string& name, const at::Tensor& output,
                                            std::optional<ReduceOp> reduce_op) const {
  if (in_cross_replica_context()) {
    keep(name, reduce_op ? get_strategy().reduce(*reduce_op, output) : output);
    return;
  }
  if (!reduce_op) {
    throw Error(ErrorCode::kInvalidArgument,
                message("MultiStepContext::set_last_step_output: \"", name,
                        "\" was set by replicas without a ReduceOp. Say how to combine their "
                        "values, for example ReduceOp::kMean."));
  }
  get_replica_context()->merge_call(
      [&](const tutti::Strategy& strategy, const PerReplica<at::Tensor>& outputs) {
        keep(name, strategy.reduce(*reduce_op, outputs));
      },
      output);
}

void MultiStepContext::set_last_step_output(const std::string& name,
                                            const PerReplica<at::Tensor>& output,
                                            std::optional<ReduceOp> reduce_op) const {
  if (reduce_op) return keep(name, get_strategy().reduce(*reduce_op, output));
  const std::lock_guard lock(state_->mutex);
  state_->outputs.erase(name);
  state_->per_replica.insert_or_assign(name, output);
}

MultiStepContext::Outputs MultiStepContext::last_step_outputs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->outputs;
}

MultiStepContext::PerReplicaOutputs MultiStepContext::last_step_per_replica_outputs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->per_replica;
}

std::map<std::string, std::any> MultiStepContext::non_tensor_outputs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->others;
}

void MultiStepContext::keep(const std::string& name, at::Tensor output) const {
  const std::lock_guard lock(state_->mutex);
  state_->per_replica.erase(name);
  state_->outputs.insert_or_assign(name, std::move(output));
}

void MultiStepContext::keep_other(const std::string& name, std::any output) const {
  const std::lock_guard lock(state_->mutex);
  state_->others.insert_or_assign(name, std::move(output));
}

}  // namespace tutti::v1
