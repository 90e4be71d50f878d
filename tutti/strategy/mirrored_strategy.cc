// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/mirrored_strategy.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

namespace tutti {
namespace {

std::shared_ptr<LocalExtended> make_extended(const std::vector<std::string>& names,
                                             const MirroredStrategyOptions& options) {
  const std::vector<DeviceSpec> devices =
      internal::logical_device_table().resolve("MirroredStrategy", names);
  StrategyTraits traits{.communication_options = options.communication_options,
                        .compat = {.isolates_session_state = true}};
  if (options.cross_device_ops == nullptr) {
    traits.make_worker = [devices, options](std::shared_ptr<ClusterResolver> resolver) {
      MultiWorkerMirroredStrategyOptions worker{
          .communication_options = options.communication_options, .runner = options.runner};
      for (const DeviceSpec& device : devices) worker.devices.push_back(device.short_name());
      return MultiWorkerMirroredStrategy(std::move(resolver), worker).extended().shared_from_this();
    };
  } else {
    traits.why_one_process =
        "it was given cross_device_ops, which combine the devices of one process only";
  }
  auto extended = std::make_shared<LocalExtended>(
      "MirroredStrategy", devices, options.cross_device_ops, options.runner, std::move(traits));
  const int threads = extended->threads_per_replica();
  log(LogLevel::kInfo,
      message("Using MirroredStrategy with devices ('", joined(extended->worker_devices(), "', '"),
              "'); ", threads, threads == 1 ? " thread" : " threads", " per replica on ",
              usable_cores(), usable_cores() == 1 ? " usable core" : " usable cores"));
  return extended;
}

}  // namespace

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   const MirroredStrategyOptions& options)
    : Strategy(make_extended(devices, options)) {}

void MirroredStrategy::configure(const ClusterSpec& cluster_spec, const std::string& task_type,
                                 int task_id) {
  join_cluster("MirroredStrategy::configure", cluster_spec, task_type, task_id);
}

}  // namespace tutti
