// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/mirrored_strategy.h"

#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/local_extended.h"

namespace tutti {
namespace {

std::shared_ptr<LocalExtended> make_extended(const std::vector<std::string>& devices,
                                             const MirroredStrategyOptions& options) {
  auto extended = std::make_shared<LocalExtended>(
      "MirroredStrategy", internal::logical_device_table().resolve("MirroredStrategy", devices),
      options.cross_device_ops, options.runner, options.communication_options);
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

}  // namespace tutti
