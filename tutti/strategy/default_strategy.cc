// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/default_strategy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tutti/collectives/host_all_reduce.h"
#include "tutti/values/component_variable.h"

namespace tutti {
namespace {

// Its context is always valid on every thread, so it does not need a runner: run() calls
// the function, and a meeting of one replica is complete immediately.
class DefaultExtended final : public StrategyExtended {
 public:
  DefaultExtended()
      : StrategyExtended("DefaultStrategy", {DeviceSpec::canonical("CPU:0")},
                         {.is_ambient = true}) {}

  CrossDeviceOps& cross_device_ops() override { return cross_device_ops_; }

  void meet(ReplicaContext&, MeetingRequest& request) override {
    MeetingRequest* requests[] = {&request};
    const MeetingNote note = request.note();
    request.attach(&note);
    const internal::FrameScope cross(this, nullptr);
    request.complete(requests);
  }

  Destinations non_slot_devices(const std::vector<Variable>& variables) const override {
    if (variables.empty()) return StrategyExtended::non_slot_devices(variables);
    return *std::min_element(
        variables.begin(), variables.end(),
        [](const Variable& a, const Variable& b) { return a.name() < b.name(); });
  }

 private:
  std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition,
                                                   const at::Tensor& initial_value) override {
    return make_plain_variable(std::move(definition), initial_value);
  }

  void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) override {
    const internal::FrameScope frame(this, &replica_context(0));
    fn(replica_context(0));
  }

  HostAllReduce cross_device_ops_;
};

}  // namespace

const std::shared_ptr<StrategyExtended>& default_strategy_extended() {
  // Never destroyed: threads may ask for it while the process exits.
  static const auto* const instance =
      new std::shared_ptr<StrategyExtended>(std::make_shared<DefaultExtended>());
  return *instance;
}

}  // namespace tutti
