// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/local_extended.h"

#include <utility>

#include "tutti/collectives/host_all_reduce.h"

namespace tutti {

LocalExtended::LocalExtended(std::string name, std::vector<DeviceSpec> devices,
                             std::shared_ptr<CrossDeviceOps> cross_device_ops,
                             const ReplicaRunnerOptions& options)
    : StrategyExtended(std::move(name), devices, 0, static_cast<int>(devices.size())),
      cross_device_ops_(cross_device_ops != nullptr ? std::move(cross_device_ops)
                                                    : std::make_shared<HostAllReduce>()),
      runner_(this->name(), *this, contexts(), options) {}

}  // namespace tutti
