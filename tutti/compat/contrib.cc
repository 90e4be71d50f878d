// SPDX-License-Identifier: Apache-2.0

#include "tutti/compat/contrib.h"

#include "tutti/base/error.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/mirrored_strategy.h"

namespace tutti::contrib {
namespace {

template <class... A>
[[noreturn]] void refuse(ErrorCode code, const A&... what) {
  throw Error(code, message("contrib::MirroredStrategy: ", what...));
}

std::vector<std::string> devices_from(const std::vector<std::string>& devices,
                                      std::optional<int> num_gpus,
                                      std::optional<int> num_gpus_per_worker) {
  if (num_gpus && num_gpus_per_worker) {
    refuse(ErrorCode::kInvalidArgument, "num_gpus (", *num_gpus, ") and num_gpus_per_worker (",
           *num_gpus_per_worker, ") are two names of one number. Give one of them.");
  }
  const char* const name = num_gpus ? "num_gpus" : "num_gpus_per_worker";
  const std::optional<int> count = num_gpus ? num_gpus : num_gpus_per_worker;
  if (!count) return devices;
  if (!devices.empty()) {
    refuse(ErrorCode::kInvalidArgument, "devices and ", name, " (", *count,
           ") exclude each other. Give one of them.");
  }
  if (*count < 0) {
    refuse(ErrorCode::kInvalidArgument, name, " is ", *count, "; it must be 0 or more.");
  }
  if (*count == 0) return {"CPU:0"};
  const size_t present = list_logical_devices("GPU").size();
  if (static_cast<size_t>(*count) > present) {
    refuse(ErrorCode::kNotFound, name, " is ", *count, ", but this process has ", present,
           present == 1 ? " GPU" : " GPUs",
           ". Train on CPU devices instead, for example MirroredStrategy({\"CPU:0\", \"CPU:1\"}), "
           "or check the driver and CUDA_VISIBLE_DEVICES.");
  }
  std::vector<std::string> gpus;
  for (int i = 0; i < *count; ++i) gpus.push_back(message("GPU:", i));
  return gpus;
}

std::shared_ptr<CrossDeviceOps> ops_from(std::shared_ptr<CrossDeviceOps> cross_device_ops,
                                         std::shared_ptr<CrossDeviceOps> cross_tower_ops) {
  if (cross_device_ops != nullptr && cross_tower_ops != nullptr) {
    refuse(ErrorCode::kInvalidArgument,
           "cross_tower_ops is the older name of cross_device_ops. Give one of them.");
  }
  return cross_device_ops != nullptr ? std::move(cross_device_ops) : std::move(cross_tower_ops);
}

}  // namespace

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   std::optional<int> num_gpus,
                                   std::optional<int> num_gpus_per_worker,
                                   std::shared_ptr<CrossDeviceOps> cross_device_ops,
                                   bool auto_shard_dataset,
                                   std::shared_ptr<CrossDeviceOps> cross_tower_ops)
    : v1::Strategy(tutti::MirroredStrategy(
          devices_from(devices, num_gpus, num_gpus_per_worker),
          {.cross_device_ops =
               ops_from(std::move(cross_device_ops), std::move(cross_tower_ops))})) {
  extended()->set_compat({.isolates_session_state = true,
                          .takes_replica_batches = true,
                          .shards_replica_batches = auto_shard_dataset});
}

}  // namespace tutti::contrib
