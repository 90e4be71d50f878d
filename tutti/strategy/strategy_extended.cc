// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/strategy_extended.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/context_checks.h"
#include "tutti/strategy/internal/variable_registry.h"

namespace tutti {

StrategyExtended::StrategyExtended(std::string name, std::vector<DeviceSpec> devices,
                                   StrategyTraits traits)
    : name_(std::move(name)),
      devices_(std::move(devices)),
      num_replicas_(static_cast<int>(devices_.size())),
      traits_(std::move(traits)),
      variables_(std::make_unique<internal::VariableRegistry>(devices_.size())) {
  traits_.communication_options.validate();
  if (devices_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, message(name_, ": the list of devices is empty."));
  }
  if (traits_.workers == nullptr) traits_.workers = WorkerGroup::alone();
  if (traits_.parameter_devices.empty()) traits_.parameter_devices = devices_;
  const auto local = static_cast<int>(devices_.size());
  const int first = workers().rank() * local;
  num_replicas_ = workers().size() * local;
  for (int i = 0; i < local; ++i) {
    contexts_.push_back(std::make_unique<ReplicaContext>(*this, first + i, i, num_replicas_,
                                                         devices_[static_cast<size_t>(i)]));
  }
}

StrategyExtended::~StrategyExtended() = default;

std::vector<std::vector<DeviceSpec>> StrategyExtended::worker_devices_by_replica() const {
  std::vector<std::vector<DeviceSpec>> lists;
  for (const DeviceSpec& device : devices_) lists.push_back({device});
  return lists;
}

std::string StrategyExtended::describe() const {
  return message(name_, "(", joined(devices_, ", ", &DeviceSpec::short_name), ")",
                 workers().place());
}

ReplicaContext& StrategyExtended::replica_context(int local_replica) const {
  if (local_replica < 0 || local_replica >= num_local_replicas()) {
    throw Error(ErrorCode::kInvalidArgument,
                message(name_, "::replica_context: there is no local replica ", local_replica,
                        "; there are ", num_local_replicas(), "."));
  }
  return *contexts_[static_cast<size_t>(local_replica)];
}

std::vector<ReplicaContext*> StrategyExtended::contexts() const {
  std::vector<ReplicaContext*> pointers;
  for (const auto& context : contexts_) pointers.push_back(context.get());
  return pointers;
}

void StrategyExtended::call_in_contexts(FunctionRef<void(ReplicaContext&)> fn) {
  internal::check_cross_replica(*this, "run", "merge_call()");
  internal::check_no_replica_waits(*this);
  if (contexts_.size() == 1) {
    do_call_for_each_replica(fn);  // a single replica makes its variables alone
    return;
  }
  internal::RunVariables variables(contexts_.size());
  do_call_for_each_replica([&](ReplicaContext& context) {
    struct Inside {
      internal::VariableRegistry& registry;
      size_t replica;
      ~Inside() { registry.set_run(replica, nullptr); }
    } const inside{*variables_, static_cast<size_t>(context.local_replica_id())};
    variables_->set_run(inside.replica, &variables);
    fn(context);
  });
}

at::Tensor StrategyExtended::reduce(ReduceOp op, const PerReplica<at::Tensor>& value) {
  return cross_device_ops().reduce(op, value, Destinations(value[0]), communication_options())[0];
}

at::Tensor StrategyExtended::of_first_replica(const at::Tensor& local, const std::string& name) {
  at::Tensor value = local.clone();
  workers().broadcast(value, name);
  return value;
}

at::Tensor StrategyExtended::gather(const PerReplica<at::Tensor>& value, int64_t axis) {
  return cross_device_ops().gather(value, Destinations(value[0]), axis, communication_options())[0];
}

std::vector<Mirrored<at::Tensor>> StrategyExtended::batch_reduce_to(
    ReduceOp op, std::initializer_list<std::pair<PerReplica<at::Tensor>, Destinations>> pairs,
    const CommunicationOptions& options) {
  return batch_reduce_to<at::Tensor>(op, std::vector(pairs), options);
}

Mirrored<at::Tensor> StrategyExtended::broadcast_to(const at::Tensor& tensor,
                                                    const Destinations& destinations) {
  internal::check_cross_replica(*this, "extended().broadcast_to", "merge_call()");
  return cross_device_ops().broadcast(tensor, destinations);
}

}  // namespace tutti
