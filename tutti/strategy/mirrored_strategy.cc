// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/mirrored_strategy.h"

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/cluster/resolvers/simple.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

namespace tutti {
namespace {

std::shared_ptr<LocalExtended> make_extended(const std::vector<std::string>& devices,
                                             const MirroredStrategyOptions& options) {
  auto extended = std::make_shared<LocalExtended>(
      "MirroredStrategy", internal::logical_device_table().resolve("MirroredStrategy", devices),
      options.cross_device_ops, options.runner,
      StrategyTraits{.communication_options = options.communication_options});
  std::string list;
  for (const DeviceSpec& device : extended->worker_devices()) {
    list += message(list.empty() ? "'" : ", '", device, "'");
  }
  const int threads = extended->threads_per_replica();
  log(LogLevel::kInfo,
      message("Using MirroredStrategy with devices (", list, "); ", threads,
              threads == 1 ? " thread" : " threads", " per replica on ", usable_cores(),
              usable_cores() == 1 ? " usable core" : " usable cores"));
  return extended;
}

}  // namespace

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   const MirroredStrategyOptions& options)
    : Strategy(make_extended(devices, options)) {}

void MirroredStrategy::configure(const ClusterSpec& cluster_spec, const std::string& task_type,
                                 int task_id) {
  const char* reason = nullptr;
  if (extended().has_variables()) reason = "it already has variables";
  const auto* const local = dynamic_cast<const LocalExtended*>(&extended());
  if (local != nullptr && local->has_given_ops()) {
    reason = "it was given cross_device_ops, which combine the devices of one process only";
  }
  if (local == nullptr || extended().cluster_resolver() != nullptr) {
    reason = "it is already configured";
  }
  if (extended().weak_from_this().use_count() > 1) reason = "other handles of it exist";
  if (reason != nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("MirroredStrategy::configure: ", extended().describe(),
                        " cannot become a "
                        "strategy of several workers: ",
                        reason,
                        ". Call configure() right after making it, or make a "
                        "MultiWorkerMirroredStrategy."));
  }
  MultiWorkerMirroredStrategyOptions options;
  for (const DeviceSpec& device : local->worker_devices()) {
    options.devices.push_back(device.short_name());
  }
  options.communication_options = local->communication_options();
  options.runner = local->runner_options();
  const auto resolver = std::make_shared<SimpleClusterResolver>(cluster_spec);
  resolver->set_task_type(task_type);
  resolver->set_task_id(task_id);
  static_cast<Strategy&>(*this) = MultiWorkerMirroredStrategy(resolver, options);
}

}  // namespace tutti
