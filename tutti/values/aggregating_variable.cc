// SPDX-License-Identifier: Apache-2.0
//
// A variable with one copy for all replicas. Values that replicas write are combined by the
// variable's aggregation and written once, while the replicas wait. Each replica reads through
// its own leaf tensor, so that gradients of different replicas do not mix.

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/values/component_variable.h"
#include "tutti/values/replica_context.h"

namespace tutti {
namespace {

class AggregatingVariable final : public ComponentVariable {
 public:
  AggregatingVariable(VariableDefinition definition, const at::Tensor& initial_value,
                      size_t local_replicas)
      : ComponentVariable(std::move(definition), initial_value, local_replicas) {
    for (size_t i = 0; i < local_replicas; ++i) {
      leaves_.push_back(components()[0].detach());
      leaves_.back().set_requires_grad(components()[0].requires_grad());
    }
  }

  bool owns(const at::Tensor& tensor) const override {
    return ComponentVariable::owns(tensor) ||
           std::any_of(leaves_.begin(), leaves_.end(),
                       [&](const at::Tensor& each) { return each.is_same(tensor); });
  }

 private:
  const char* kind() const override { return "AggregatingVariable"; }

  const at::Tensor& local_component(const Place& place) const override {
    if (place.context == nullptr) return components()[0];
    return leaves_[static_cast<size_t>(place.context->local_replica_id())];
  }

  at::Tensor do_read(const Place& place, Read how) const override {
    return place.kind == Place::Kind::kCross ? nearest_value() : local_value(place, how);
  }

  void do_write(Write op, const Place& place, const VariableValue& value, CallSite site) override {
    if (place.kind != Place::Kind::kReplica) {
      write_component(op, 0, checked_value(to_string(op), value, 0));
      return;
    }
    combine_once(op, place, value, site,
                 [&](const at::Tensor& combined) { write_component(op, 0, combined); });
  }

  void do_scatter(Scatter op, const Place& place, const IndexedSlices& slices,
                  CallSite site) override {
    check_aggregates(op);
    if (place.kind != Place::Kind::kReplica) {
      scatter_component(op, 0, slices);
      return;
    }
    combine_once(op, place, slices, site,
                 [&](const IndexedSlices& combined) { scatter_component(op, 0, combined); });
  }

  std::vector<at::Tensor> leaves_;  // one per local replica; they share the memory
};

}  // namespace

std::shared_ptr<VariableImpl> make_aggregating_variable(VariableDefinition definition,
                                                        const at::Tensor& initial_value,
                                                        size_t local_replicas) {
  TUTTI_CHECK(definition.devices.size() == 1);
  if (definition.options.synchronization == VariableSynchronization::kAuto) {
    definition.options.synchronization = VariableSynchronization::kOnWrite;
  }
  return std::make_shared<AggregatingVariable>(std::move(definition), initial_value,
                                               local_replicas);
}

}  // namespace tutti
