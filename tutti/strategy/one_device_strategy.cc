// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/one_device_strategy.h"

#include <utility>

#include "tutti/device/logical_devices.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/values/component_variable.h"

namespace tutti {
namespace {

// There is one copy of everything, so variables are plain.
class OneDeviceExtended final : public LocalExtended {
 public:
  using LocalExtended::LocalExtended;

 private:
  std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition,
                                                   const at::Tensor& initial_value) override {
    return make_plain_variable(std::move(definition), initial_value);
  }
};

}  // namespace

OneDeviceStrategy::OneDeviceStrategy(const std::string& device,
                                     const OneDeviceStrategyOptions& options)
    : Strategy(std::make_shared<OneDeviceExtended>(
          "OneDeviceStrategy",
          internal::logical_device_table().resolve("OneDeviceStrategy", {device}), nullptr,
          ReplicaRunnerOptions{.threads_per_replica = options.threads_per_replica})) {}

}  // namespace tutti
