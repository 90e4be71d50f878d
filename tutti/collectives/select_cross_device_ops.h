// SPDX-License-Identifier: Apache-2.0
//
// Which CrossDeviceOps a strategy uses when it is given none.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/device/device_spec.h"
#include "tutti/group/worker_group.h"

namespace tutti {

/// What the rule chose, and why.
struct CrossDeviceOpsChoice {
  enum class Kind { kHostAllReduce, kNcclAllReduce, kReductionToOneDevice };

  Kind kind;
  std::string reason;  ///< "all devices are CPUs"
};

/// Applies the rule only: CPUs reduce in host memory; several GPUs, each listed once, use
/// NCCL if it is available; everything else is reduced on one device. Throws
/// kInvalidArgument for an empty list.
CrossDeviceOpsChoice choose_cross_device_ops(const std::vector<DeviceSpec>& devices,
                                             bool nccl_available);

/// Returns the implementation for these devices. With several devices that are not all CPUs
/// a line at kInfo says which and why.
std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::vector<DeviceSpec>& devices);

/// The same for a worker with these devices, over the replicas of all workers of the group.
std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::shared_ptr<WorkerGroup>& group,
                                                        const std::vector<DeviceSpec>& devices);

}  // namespace tutti
