// SPDX-License-Identifier: Apache-2.0
//
// A variable with one copy for all replicas. Values that replicas write are combined by the
// variable's aggregation and written once, while the replicas wait. Each replica reads through
// its own leaf tensor, so that gradients of different replicas do not mix.

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/strategy_services.h"
#include "tutti/values/variable_impl.h"

namespace tutti {
namespace {

class AggregatingVariable final : public VariableImpl {
 public:
  AggregatingVariable(VariableDefinition definition, size_t local_replicas)
      : VariableImpl(std::move(definition)) {
    for (size_t i = 0; i < local_replicas; ++i) {
      leaves_.push_back(components()[0].detach());
      leaves_.back().set_requires_grad(components()[0].requires_grad());
    }
  }

  bool owns(const at::Tensor& tensor) const override {
    return VariableImpl::owns(tensor) ||
           std::any_of(leaves_.begin(), leaves_.end(),
                       [&](const at::Tensor& each) { return each.is_same(tensor); });
  }

 private:
  const char* kind() const override { return "AggregatingVariable"; }

  size_t value_parts() const override { return leaves_.size(); }

  const at::Tensor& local_component(const Place& place) const override {
    if (place.context == nullptr) return components()[0];
    return leaves_[static_cast<size_t>(place.context->local_replica_id())];
  }

  at::Tensor do_read(const Place& place, Read how) override {
    return place.kind == Place::Kind::kCross ? nearest_value() : local_value(place, how);
  }

  void check_has_aggregation(const char* function) const {
    if (options().aggregation != VariableAggregation::kNone) return;
    throw Error(ErrorCode::kInvalidArgument,
                message("Variable::", function,
                        ": you must specify an aggregation method to update ", describe(),
                        " in a replica: all replicas share its one copy. Make it with "
                        "VariableOptions{.aggregation = ...}."));
  }

  void combine_and_apply(const char* function, const Place& place, const LeafList& leaves,
                         VariableUpdate::Same same, const void* mirrored, CallSite site,
                         FunctionRef<void(const Leaf&)> apply) {
    check_has_aggregation(function);
    services().combine_update(*place.context, {*this, function, options().aggregation, leaves, same,
                                               mirrored, site, apply});
  }

  void do_write(Write op, const Place& place, const VariableValue& value, CallSite site) override {
    const bool in_replica = place.kind == Place::Kind::kReplica;
    const auto part = static_cast<size_t>(in_replica ? place.context->local_replica_id() : 0);
    at::Tensor mine = checked_value(to_string(op), value, part);
    if (place.kind != Place::Kind::kReplica) {
      write_component(op, 0, mine);
      return;
    }
    const LeafList leaves = {{Leaf::Kind::kTensor, 0, false, &mine}};
    combine_and_apply(to_string(op), place, leaves, sameness(value), identity(value), site,
                      [&](const Leaf& all) { write_component(op, 0, all.tensor()); });
  }

  void do_scatter(Scatter op, const Place& place, const IndexedSlices& slices,
                  CallSite site) override {
    check_aggregates(op);
    if (place.kind != Place::Kind::kReplica) {
      scatter_component(op, 0, slices);
      return;
    }
    IndexedSlices mine(slices.values().detach(), slices.indices(), slices.dense_shape());
    const LeafList leaves = {{Leaf::Kind::kIndexedSlices, 0, false, &mine}};
    combine_and_apply(to_string(op), place, leaves, VariableUpdate::Same::kNo, nullptr, site,
                      [&](const Leaf& all) { scatter_component(op, 0, all.slices()); });
  }

  std::vector<at::Tensor> leaves_;  // one per local replica; they share the memory
};

}  // namespace

std::shared_ptr<VariableImpl> make_aggregating_variable(VariableDefinition definition,
                                                        size_t local_replicas) {
  TUTTI_CHECK(definition.components.size() == 1);
  if (definition.options.synchronization == VariableSynchronization::kAuto) {
    definition.options.synchronization = VariableSynchronization::kOnWrite;
  }
  return std::make_shared<AggregatingVariable>(std::move(definition), local_replicas);
}

}  // namespace tutti
