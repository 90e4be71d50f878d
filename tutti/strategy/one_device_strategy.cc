// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/one_device_strategy.h"

#include "tutti/device/logical_devices.h"
#include "tutti/strategy/local_extended.h"

namespace tutti {

OneDeviceStrategy::OneDeviceStrategy(const std::string& device,
                                     const OneDeviceStrategyOptions& options)
    : Strategy(std::make_shared<LocalExtended>(
          "OneDeviceStrategy",
          internal::logical_device_table().resolve("OneDeviceStrategy", {device}), nullptr,
          ReplicaRunnerOptions{.threads_per_replica = options.threads_per_replica})) {}

}  // namespace tutti
