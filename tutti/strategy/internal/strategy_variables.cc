// SPDX-License-Identifier: Apache-2.0
//
// The part of StrategyExtended that deals with variables.

#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/ops/zeros.h>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/internal/context_checks.h"
#include "tutti/strategy/internal/variable_registry.h"
#include "tutti/strategy/internal/variable_requests.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/values/component_variable.h"

namespace tutti {
namespace {

// Checks that replica 0 made what this replica requested; an initial-value function is not called.
void check_same_wish(const ReplicaContext& context, const VariableCreation& creation,
                     const VariableImpl& made) {
  const VariableOptions& wish = creation.options;
  const auto refuse = [&](const std::string& difference) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Variable: replica ", context.replica_id_in_sync_group(), " makes '",
                        wish.name, "' ", difference,
                        ". All replicas must make the same variable "
                        "(replica 0 made ",
                        made.describe(), ")."));
  };
  if (wish.aggregation != made.options().aggregation) {
    refuse(message("with aggregation ", wish.aggregation, ", but replica 0 with ",
                   made.options().aggregation));
  }
  const auto on_read = [](const VariableOptions& options) {
    return options.synchronization == VariableSynchronization::kOnRead;
  };
  if (on_read(wish) != on_read(made.options())) {
    refuse(message("with synchronization ", wish.synchronization, ", but replica 0 with ",
                   made.options().synchronization));
  }
  const bool trainable = wish.trainable.value_or(!on_read(wish));
  if (trainable != *made.options().trainable) {
    refuse(trainable ? "as trainable, but replica 0 as not trainable"
                     : "as not trainable, but replica 0 as trainable");
  }
  if (creation.is_function) return;
  const at::Tensor value = creation.initial_value();
  if (!value.defined() || value.sizes() != made.shape() ||
      wish.dtype.value_or(value.scalar_type()) != made.dtype()) {
    refuse(message("from ", describe(value), ", but replica 0 from a different type or shape"));
  }
}

}  // namespace

namespace internal {

const std::vector<DeviceSpec>* ColocationScope::devices_for(const StrategyExtended& strategy) {
  for (const ColocationScope* each = thread_context.colocation; each != nullptr;
       each = each->slot_.previous()) {
    if (each->strategy_ == &strategy) return &each->devices_;
  }
  return nullptr;
}

}  // namespace internal

// ---- making variables -----------------------------------------------------------

std::shared_ptr<VariableImpl> StrategyExtended::create_variable(const VariableCreation& creation) {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame != nullptr && frame->services == this && frame->replica != nullptr &&
      num_local_replicas() > 1) {
    return create_in_replica(*frame->replica, creation);
  }
  const std::vector<DeviceSpec>* colocated = internal::ColocationScope::devices_for(*this);
  const std::vector<DeviceSpec>& devices = colocated != nullptr ? *colocated : parameter_devices();
  const at::Tensor initial_value = [&] {
    const DeviceScope device(devices[0]);
    return creation.initial_value();
  }();
  return make_variable(creation.options, initial_value, devices);
}

std::shared_ptr<VariableImpl> StrategyExtended::make_variable(
    const VariableOptions& options, const at::Tensor& initial_value,
    const std::vector<DeviceSpec>& devices) {
  has_variables_.store(true);
  at::Tensor value = initial_value;
  if (value.defined()) {
    value = workers().of_first(value, options.name);
    // Small values are sent without waiting for their arrival: wait until all workers have this.
    workers().barrier(options.name);
  }
  std::shared_ptr<VariableImpl> variable =
      do_create_variable(define_variable(shared_from_this(), options, value, devices), value);
  variables_->add(variable);
  return variable;
}

std::shared_ptr<VariableImpl> StrategyExtended::create_in_replica(
    ReplicaContext& context, const VariableCreation& creation) {
  const auto replica = static_cast<size_t>(context.local_replica_id());
  internal::RunVariables* const run = variables_->run_of(replica);
  if (run == nullptr) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("Variable: '", creation.options.name, "' is made in the context of replica ",
                context.replica_id_in_sync_group(), " of ", describe(),
                ", but its function is not running: the others would never arrive. Make it "
                "inside Strategy::run, or in the scope."));
  }
  const std::string name = internal::canonical_variable_name(creation.options.name);
  const std::vector<DeviceSpec>* colocated = internal::ColocationScope::devices_for(*this);
  at::Tensor initial_value;
  while (true) {
    if (std::shared_ptr<VariableImpl> made = run->take(replica, name)) {
      if (replica != 0) check_same_wish(context, creation, *made);
      return made;
    }
    if (replica == 0) initial_value = creation.initial_value();
    const auto make = [&] {
      run->add(name, make_variable(creation.options, initial_value,
                                   colocated != nullptr ? *colocated : parameter_devices()));
    };
    internal::CreateVariableRequest request(creation, make);
    meet(context, request);
  }
}

std::shared_ptr<VariableImpl> StrategyExtended::do_create_variable(
    VariableDefinition definition, const at::Tensor& initial_value) {
  switch (definition.options.synchronization) {
    case VariableSynchronization::kNone:
      throw Error(
          ErrorCode::kInvalidArgument,
          message("Variable: '", definition.options.name,
                  "': the kNone variable synchronization mode is not supported with ", describe(),
                  ", which keeps a copy on every replica. Use kAuto, kOnWrite "
                  "or kOnRead."));
    case VariableSynchronization::kOnRead:
      return make_sync_on_read_variable(std::move(definition), initial_value);
    default:
      return make_mirrored_variable(std::move(definition), initial_value);
  }
}

internal::ColocationScope StrategyExtended::colocate_vars_with(const Variable& variable) {
  internal::check_cross_replica(*this, "extended().colocate_vars_with", "merge_call()");
  if (!variable_created_in_scope(variable)) {
    throw Error(ErrorCode::kInvalidArgument,
                message("StrategyExtended::colocate_vars_with: it must only be passed a variable "
                        "created in this strategy's scope; ",
                        variable.impl()->describe(), " belongs to ",
                        variable.impl()->services().describe(), "."));
  }
  return {*this, variable.devices()};
}

// ---- asking -----------------------------------------------------------------------

bool StrategyExtended::variable_created_in_scope(const Variable& variable) const {
  return &variable.impl()->services() == this;
}

std::optional<Variable> StrategyExtended::value_container(const at::Tensor& component) const {
  std::shared_ptr<VariableImpl> found = variables_->find(component);
  if (found == nullptr) return std::nullopt;
  return Variable(std::move(found));
}

at::Tensor StrategyExtended::read_var(const Variable& variable) const {
  check_variable("read_var", variable);
  return variable.read_value();
}

Destinations StrategyExtended::non_slot_devices(const std::vector<Variable>&) const {
  return Destinations(parameter_devices());
}

void StrategyExtended::check_variable(const char* function, const Variable& variable) const {
  if (variable_created_in_scope(variable)) return;
  throw Error(ErrorCode::kInvalidArgument,
              message("StrategyExtended::", function, ": ", variable.impl()->describe(),
                      " belongs to ", variable.impl()->services().describe(),
                      internal::not_to(*this, variable.impl()->services()),
                      ". Make it in the scope of this strategy."));
}

// ---- updates ------------------------------------------------------------------------

void StrategyExtended::update_components(const char* function,
                                         const std::vector<DeviceSpec>& devices,
                                         std::initializer_list<size_t> argument_sizes,
                                         FunctionRef<void(size_t component)> fn) {
  const bool of_variable = std::string_view(function) == "update";
  internal::check_cross_replica(
      *this, of_variable ? "extended().update" : "extended().update_non_slot", "update()");
  for (const size_t size : argument_sizes) {
    if (size == 0 || size == devices.size() || devices.size() == 1) continue;
    throw Error(ErrorCode::kInvalidArgument,
                message("StrategyExtended::", function, ": an argument has ", size,
                        " components, but there are ", devices.size(),
                        " copies to update. Was it made by another strategy?"));
  }
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceScope device(devices[i]);
    const internal::FrameScope frame(this, nullptr, static_cast<int>(i));
    fn(i);
  }
}

void StrategyExtended::combine_update(ReplicaContext& context, const VariableUpdate& update) {
  if (update.aggregation == VariableAggregation::kOnlyFirstReplica) {
    internal::FirstUpdateRequest request(*this, update);
    meet(context, request);
    request.hand_out();
    return;
  }
  if (update.variable.dtype() == at::kBool) {
    check_reducible(
        message("Variable::", update.function, " of ", update.variable.describe()).c_str(),
        to_reduce_op(update.aggregation), at::kBool);
  }
  internal::CombineUpdateRequest request(*this, context, update);
  request.allocate_outputs();
  meet(context, request);
  request.hand_out();
}

}  // namespace tutti
