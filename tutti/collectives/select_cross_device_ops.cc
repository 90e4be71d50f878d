// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/select_cross_device_ops.h"

#include <algorithm>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/base/mutex.h"
#include "tutti/collectives/host_all_reduce.h"
#include "tutti/collectives/nccl/nccl_all_reduce.h"
#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/collectives/worker_cross_device_ops.h"
#include "tutti/device/device_scope.h"

namespace tutti {
namespace {

using Kind = CrossDeviceOpsChoice::Kind;

std::string names_of(const std::vector<DeviceSpec>& devices) {
  return joined(devices, ", ", &DeviceSpec::short_name);
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kHostAllReduce:
      return "HostAllReduce";
    case Kind::kNcclAllReduce:
      return "NcclAllReduce";
    case Kind::kReductionToOneDevice:
      return "ReductionToOneDevice";
  }
  return "";
}

// One for all strategies of the process: they may share GPUs.
std::shared_ptr<CrossDeviceOps> shared_nccl() {
  static auto* const mutex = new Mutex;
  static auto* const shared = new std::weak_ptr<CrossDeviceOps>;
  MutexLock lock(*mutex);
  std::shared_ptr<CrossDeviceOps> ops = shared->lock();
  if (ops == nullptr) *shared = ops = std::make_shared<NcclAllReduce>(/*num_packs=*/1);
  return ops;
}

std::shared_ptr<CrossDeviceOps> make(Kind kind) {
  switch (kind) {
    case Kind::kHostAllReduce:
      return std::make_shared<HostAllReduce>();
    case Kind::kNcclAllReduce:
      return shared_nccl();
    case Kind::kReductionToOneDevice:
      break;
  }
  return std::make_shared<ReductionToOneDevice>();
}

}  // namespace

CrossDeviceOpsChoice choose_cross_device_ops(const std::vector<DeviceSpec>& devices,
                                             bool nccl_available) {
  if (devices.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "select_cross_device_ops: the list of devices is empty; name at least one.");
  }
  const auto is_cpu = [](const DeviceSpec& device) { return torch_device(device).is_cpu(); };
  if (std::all_of(devices.begin(), devices.end(), is_cpu)) {
    return {Kind::kHostAllReduce, "all devices are CPUs"};
  }
  if (std::any_of(devices.begin(), devices.end(), is_cpu)) {
    return {Kind::kReductionToOneDevice, "there are CPUs and GPUs"};
  }
  if (devices.size() == 1) return {Kind::kReductionToOneDevice, "there is one GPU"};
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (torch_device(devices[i]) == torch_device(devices[j])) {
        return {Kind::kReductionToOneDevice,
                message(devices[i].short_name(), " is listed twice, which NCCL does not support")};
      }
    }
  }
  if (!nccl_available) return {Kind::kReductionToOneDevice, "NCCL is not available"};
  return {Kind::kNcclAllReduce, "all devices are different GPUs"};
}

std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::vector<DeviceSpec>& devices) {
  CrossDeviceOpsChoice choice = choose_cross_device_ops(devices, /*nccl_available=*/true);
  // The library is searched for only when it would be used.
  if (choice.kind == Kind::kNcclAllReduce && !nccl_is_available()) {
    choice = choose_cross_device_ops(devices, /*nccl_available=*/false);
  }
  // Between CPUs there is nothing to choose, and with one device nothing to combine.
  if (choice.kind != Kind::kHostAllReduce && devices.size() > 1) {
    log(LogLevel::kInfo, message("Using ", name_of(choice.kind), " between ", names_of(devices),
                                 ": ", choice.reason, "."));
  }
  return make(choice.kind);
}

std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::shared_ptr<WorkerGroup>& group,
                                                        const std::vector<DeviceSpec>& devices) {
  if (group->is_alone()) return select_cross_device_ops(devices);
  return std::make_shared<WorkerCrossDeviceOps>(group, static_cast<int>(devices.size()));
}

}  // namespace tutti
