// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/central_storage_strategy.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/device_scope.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/values/component_variable.h"

namespace tutti {
namespace {

constexpr const char* kName = "CentralStorageStrategy";

class CentralStorageExtended final : public LocalExtended {
 public:
  CentralStorageExtended(const std::vector<DeviceSpec>& compute_devices,
                         DeviceSpec parameter_device, const CentralStorageStrategyOptions& options)
      : LocalExtended(kName, compute_devices, options.cross_device_ops, options.runner,
                      {.parameter_devices = {std::move(parameter_device)},
                       .shares_parameters = true,
                       .communication_options = options.communication_options,
                       .compat = {.isolates_session_state = true}}) {}

 private:
  // A definition may have several devices if the variable is colocated with one that
  // synchronises on read.
  std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition,
                                                   const at::Tensor& initial_value) override {
    if (definition.options.synchronization == VariableSynchronization::kOnRead &&
        num_local_replicas() > 1) {
      definition.devices = worker_devices();
      return make_sync_on_read_variable(std::move(definition), initial_value);
    }
    definition.devices.resize(1);
    if (num_local_replicas() == 1) return make_plain_variable(std::move(definition), initial_value);
    return make_aggregating_variable(std::move(definition), initial_value,
                                     static_cast<size_t>(num_local_replicas()));
  }
};

DeviceSpec resolve_parameter_device(const std::vector<DeviceSpec>& compute_devices,
                                    const std::string& name) {
  if (name.empty() && compute_devices.size() == 1) return compute_devices[0];
  DeviceSpec device =
      internal::logical_device_table().resolve(kName, {name.empty() ? "CPU:0" : name})[0];
  for (const DeviceSpec& each : compute_devices) {
    if (torch_device(each) == torch_device(device)) continue;
    throw Error(ErrorCode::kUnimplemented,
                message(kName, ": the parameters on ", device.short_name(),
                        " are not in the memory of compute device ", each.short_name(),
                        ", and replicas share them without copies. Name devices of one memory, "
                        "or use MirroredStrategy, which has a copy on every device."));
  }
  return device;
}

std::shared_ptr<LocalExtended> make_extended(const std::vector<std::string>& compute_devices,
                                             const std::string& parameter_device,
                                             const CentralStorageStrategyOptions& options) {
  const std::vector<DeviceSpec> devices =
      internal::logical_device_table().resolve(kName, compute_devices);
  auto extended = std::make_shared<CentralStorageExtended>(
      devices, resolve_parameter_device(devices, parameter_device), options);
  const int threads = extended->threads_per_replica();
  log(LogLevel::kInfo,
      message("Using ", kName, " with compute devices ('", joined(devices, "', '"),
              "') and parameters on '", extended->parameter_devices()[0], "'; ", threads,
              threads == 1 ? " thread" : " threads", " per replica on ", usable_cores(),
              usable_cores() == 1 ? " usable core" : " usable cores"));
  return extended;
}

}  // namespace

CentralStorageStrategy::CentralStorageStrategy(const std::vector<std::string>& compute_devices,
                                               const std::string& parameter_device,
                                               const CentralStorageStrategyOptions& options)
    : Strategy(make_extended(compute_devices, parameter_device, options)) {}

}  // namespace tutti
