// SPDX-License-Identifier: Apache-2.0
//
// A variable with a copy on every replica. Values that replicas write are combined by the
// variable's aggregation and then applied to every copy, so that the copies stay equal.

#include <utility>

#include "tutti/base/error.h"
#include "tutti/values/component_variable.h"
#include "tutti/values/replica_context.h"

namespace tutti {
namespace {

class MirroredVariable final : public ComponentVariable {
 public:
  using ComponentVariable::ComponentVariable;

  bool is_mirrored() const override { return true; }

 private:
  const char* kind() const override { return "MirroredVariable"; }

  at::Tensor do_read(const Place& place, Read how) const override {
    return place.kind == Place::Kind::kCross ? nearest_value() : local_value(place, how);
  }

  // Without an aggregation a replica writes its own copy, and copies may drift apart.
  bool combines(const Place& place) const {
    return place.kind == Place::Kind::kReplica &&
           options().aggregation != VariableAggregation::kNone;
  }

  void do_write(Write op, const Place& place, const VariableValue& value, CallSite site) override {
    if (place.kind == Place::Kind::kCross) {
      write_all(op, value);
    } else if (combines(place)) {
      write_component(op, place.component, combine(to_string(op), place, value, site));
    } else {
      write_component(op, place.component, checked_value(to_string(op), value, place.component));
    }
  }

  void do_scatter(Scatter op, const Place& place, const IndexedSlices& slices,
                  CallSite site) override {
    check_aggregates(op);
    if (place.kind == Place::Kind::kCross) {
      for (size_t i = 0; i < components().size(); ++i) scatter_component(op, i, slices);
    } else if (combines(place)) {
      scatter_component(op, place.component, combine(op, place, slices, site));
    } else {
      scatter_component(op, place.component, slices);
    }
  }
};

}  // namespace

std::shared_ptr<VariableImpl> make_mirrored_variable(VariableDefinition definition,
                                                     const at::Tensor& initial_value) {
  definition.options.synchronization = VariableSynchronization::kOnWrite;
  return std::make_shared<MirroredVariable>(std::move(definition), initial_value);
}

}  // namespace tutti
