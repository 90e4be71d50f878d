// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/local_extended.h"

#include <utility>

#include "tutti/collectives/select_cross_device_ops.h"

namespace tutti {

LocalExtended::LocalExtended(std::string name, std::vector<DeviceSpec> devices,
                             std::shared_ptr<CrossDeviceOps> cross_device_ops,
                             const ReplicaRunnerOptions& options,
                             const CommunicationOptions& communication_options, int worker,
                             int workers)
    : StrategyExtended(std::move(name), devices, worker * static_cast<int>(devices.size()),
                       workers * static_cast<int>(devices.size()), communication_options),
      has_given_ops_(cross_device_ops != nullptr),
      cross_device_ops_(cross_device_ops != nullptr ? std::move(cross_device_ops)
                                                    : select_cross_device_ops(devices)),
      runner_(this->name(), *this, contexts(), options) {}

}  // namespace tutti
