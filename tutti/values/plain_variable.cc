// SPDX-License-Identifier: Apache-2.0
//
// A variable with one copy and nothing to keep equal.

#include <utility>

#include "tutti/base/error.h"
#include "tutti/values/component_variable.h"
#include "tutti/values/context_frame.h"
#include "tutti/values/replica_context.h"

namespace tutti {
namespace {

class PlainVariable final : public ComponentVariable {
 public:
  using ComponentVariable::ComponentVariable;

 private:
  const char* kind() const override { return nullptr; }

  // Outside of the replica this is a copy, as with every other strategy. Without a strategy, every
  // thread is in the only replica of the default one.
  at::Tensor do_read(const Place& place, Read how) const override {
    if (place.kind == Place::Kind::kCross && !services().is_ambient()) return nearest_value();
    return local_value({Place::Kind::kReplica, 0}, how);
  }

  void do_write(Write op, const Place&, const VariableValue& value, CallSite) override {
    check_one_writer(to_string(op));
    write_component(op, 0, checked_value(to_string(op), value, 0));
  }

  void do_scatter(Scatter op, const Place&, const IndexedSlices& slices, CallSite) override {
    check_one_writer(to_string(op));
    scatter_component(op, 0, slices);
  }

  void check_one_writer(const char* function) const {
    const internal::ContextFrame* frame = internal::current_frame();
    if (frame == nullptr || frame->replica == nullptr || frame->services == &services() ||
        frame->replica->num_replicas_in_sync() == 1) {
      return;
    }
    throw Error(ErrorCode::kFailedPrecondition,
                message("Variable::", function, ": ", describe(),
                        " was made outside of a scope and has one copy, which all replicas of ",
                        frame->services->describe(),
                        " would write at the same time. Make it inside the strategy's scope."));
  }
};

}  // namespace

std::shared_ptr<VariableImpl> make_plain_variable(VariableDefinition definition,
                                                  const at::Tensor& initial_value) {
  return std::make_shared<PlainVariable>(std::move(definition), initial_value);
}

}  // namespace tutti
