// SPDX-License-Identifier: Apache-2.0
//
// A variable with a copy on every replica, where the copies may differ: replicas write their
// own, and a read from outside of run() combines them. Intended for metrics.

#include <utility>

#include <ATen/core/grad_mode.h>

#include "tutti/base/error.h"
#include "tutti/values/component_variable.h"
#include "tutti/values/context_frame.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/strategy_services.h"

namespace tutti {
namespace {

class SyncOnReadVariable final : public ComponentVariable {
 public:
  using ComponentVariable::ComponentVariable;

 private:
  const char* kind() const override { return "SyncOnReadVariable"; }

  at::Tensor do_read(const Place& place, Read how) const override {
    if (place.kind == Place::Kind::kCross) return combined_value(how);
    if (place.kind == Place::Kind::kReplica &&
        place.context == internal::thread_context.synchronising && how != Read::kAfterWrite) {
      return synchronised_value(place, how);
    }
    return local_value(place, how);
  }

  at::Tensor combined_value(Read how) const {
    const VariableAggregation aggregation = options().aggregation;
    check_combinable(to_string(how));
    if (aggregation == VariableAggregation::kOnlyFirstReplica) {
      return services().of_first_replica(components()[0].detach(), describe());
    }
    std::vector<at::Tensor> parts;
    for (const at::Tensor& component : components()) parts.push_back(component.detach());
    const internal::OperationNameScope name(message("Variable '", options().name, "'"));
    return services().reduce(to_reduce_op(aggregation), PerReplica<at::Tensor>(std::move(parts)));
  }

  at::Tensor synchronised_value(const Place& place, Read how) const {
    if (how != Read::kConvert) {
      throw Error(ErrorCode::kUnimplemented,
                  message("Variable::", to_string(how), ": ", describe(),
                          " cannot be read this way inside variable_sync_on_read_context(). "
                          "Convert it: at::Tensor t = variable."));
    }
    check_combinable("value");
    const at::NoGradGuard no_grad;
    at::Tensor combined = combine("value", place, VariableValue(local_component(place)), {});
    return combined.is_alias_of(local_component(place)) ? combined.clone() : combined;
  }

  void check_combinable(const char* function) const {
    if (options().aggregation != VariableAggregation::kNone) return;
    throw Error(ErrorCode::kInvalidArgument,
                message("Variable::", function, ": ", describe(),
                        " synchronises on read, but its aggregation is kNone, which cannot combine "
                        "its copies into one value. Read it inside Strategy::run, take "
                        "local_results(), or give it an aggregation."));
  }

  void do_write(Write op, const Place& place, const VariableValue& value, CallSite) override {
    if (place.kind != Place::Kind::kCross) {
      write_component(op, place.component, checked_value(to_string(op), value, place.component));
      return;
    }
    if (options().aggregation != VariableAggregation::kSum) {
      write_all(op, value);
      return;
    }
    if (op != Write::kAssign) {
      throw Error(
          ErrorCode::kInvalidArgument,
          message("Variable::", to_string(op), ": ", describe(),
                  " synchronises on read and aggregates by kSum, so outside of "
                  "Strategy::run only assign() is supported: each copy gets an equal part."));
    }
    const int replicas = services().num_replicas_in_sync();
    const bool integer = at::isIntegralType(dtype(), /*includeBool=*/true);
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < components().size(); ++i) {
      const at::Tensor whole = checked_value("assign", value, i);
      // Integers are divided as integers: LibTorch would divide them in float32.
      parts.push_back((integer ? whole.div(replicas, "trunc") : whole.div(replicas)).to(dtype()));
    }
    for (size_t i = 0; i < components().size(); ++i) write_component(op, i, parts[i]);
  }

  void do_scatter(Scatter op, const Place&, const IndexedSlices&, CallSite) override {
    throw Error(
        ErrorCode::kUnimplemented,
        message("Variable::", to_string(op), ": ", describe(),
                " synchronises on read; such variables do not support scatter operations. Use "
                "assign, or a variable that synchronises on write."));
  }
};

}  // namespace

std::shared_ptr<VariableImpl> make_sync_on_read_variable(VariableDefinition definition,
                                                         const at::Tensor& initial_value) {
  definition.options.synchronization = VariableSynchronization::kOnRead;
  return std::make_shared<SyncOnReadVariable>(std::move(definition), initial_value);
}

// A flag would not suffice: the thread that calls run() becomes replica 0, and what it requested
// before does not apply there.
VariableSyncOnReadScope::VariableSyncOnReadScope()
    : slot_(internal::current_frame() != nullptr ? internal::current_frame()->replica : nullptr) {}

}  // namespace tutti
