// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/logical_devices.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti {

void set_logical_cpu_devices(int count) { internal::logical_device_table().set_cpu_count(count); }

std::vector<LogicalDevice> list_logical_devices(std::string_view type) {
  return internal::logical_device_table().list(type);
}

namespace internal {
namespace {

// More devices than this are a mistake in the caller's arithmetic.
constexpr int kMaxCpuDevices = 1024;

int count_gpus() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

std::string describe(int cpu_count, int gpu_count) {
  std::vector<std::string> names;
  const auto add = [&names](const char* type, int count) {
    for (int i = 0; i < count; ++i) {
      if (i == 8 && count > 10) {
        names.push_back(message("... ", type, ":", count - 1));
        return;
      }
      names.push_back(message(type, ":", i));
    }
  };
  add("CPU", cpu_count);
  add("GPU", gpu_count);
  return joined(names);
}

}  // namespace

void LogicalDeviceTable::set_cpu_count(int count) {
  if (count < 1 || count > kMaxCpuDevices) {
    throw Error(ErrorCode::kInvalidArgument,
                message("set_logical_cpu_devices: the count is ", count,
                        "; it must be between 1 and ", kMaxCpuDevices, "."));
  }
  MutexLock lock(mutex_);
  if (!is_open() && cpu_count() != count) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("set_logical_cpu_devices: cannot change the number of CPU devices from ",
                        cpu_count(), " to ", count,
                        "; an earlier call or the first strategy has fixed it. Call it once, "
                        "before creating the first strategy."));
  }
  cpu_count_.store(count, std::memory_order_relaxed);
}

std::vector<LogicalDevice> LogicalDeviceTable::list(std::string_view type) const {
  std::vector<LogicalDevice> devices;
  const auto add = [&](const char* name, int count) {
    if (!type.empty() && type != name) return;
    for (int i = 0; i < count; ++i) devices.push_back({message("/device:", name, ":", i), name});
  };
  add("CPU", cpu_count());
  add("GPU", gpu_count_);
  return devices;
}

std::vector<DeviceSpec> LogicalDeviceTable::resolve(std::string_view who,
                                                    const std::vector<std::string>& names) {
  MutexLock lock(mutex_);
  std::vector<DeviceSpec> specs;
  for (const std::string& name : names) specs.push_back(DeviceSpec::canonical(name));
  if (specs.empty()) {
    const bool gpus = gpu_count_ > 0;
    const int count = gpus ? gpu_count_ : cpu_count();
    for (int i = 0; i < count; ++i) {
      specs.push_back(DeviceSpec::canonical(message(gpus ? "GPU:" : "CPU:", i)));
    }
  }
  int needed = cpu_count();
  for (const DeviceSpec& spec : specs) {
    if (*spec.type == "CPU") needed = std::max(needed, *spec.index + 1);
    if (std::count(specs.begin(), specs.end(), spec) > 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, ": device \"", spec,
                          "\" is listed more than once. List each device once; for more CPU "
                          "replicas add CPU:1, CPU:2, ..."));
    }
  }
  // A rejected list must not fix the count.
  const int count = is_open() && needed <= kMaxCpuDevices ? needed : cpu_count();
  for (const DeviceSpec& spec : specs) check_exists(who, spec, count);
  cpu_count_.store(count, std::memory_order_relaxed);
  return specs;
}

void LogicalDeviceTable::check(std::string_view who, const DeviceSpec& spec) const {
  if (!spec.job || !spec.replica || !spec.task || !spec.type || !spec.index) {
    return check(who, DeviceSpec::canonical("CPU:0").merged_with(spec));
  }
  check_exists(who, spec, is_open() ? kMaxCpuDevices : cpu_count());
}

void LogicalDeviceTable::check_exists(std::string_view who, const DeviceSpec& spec,
                                      int cpu_count) const {
  if (*spec.job != "localhost" || *spec.replica != 0 || *spec.task != 0) {
    throw Error(ErrorCode::kInvalidArgument, message(who, ": device \"", spec,
                                                     "\" belongs to another process; this strategy "
                                                     "accepts only local devices. Write it as \"",
                                                     spec.short_name(), "\"."));
  }
  const bool is_cpu = *spec.type == "CPU";
  if (!is_cpu && *spec.type != "GPU") {
    throw Error(ErrorCode::kUnimplemented,
                message(who, ": the type of device \"", spec.short_name(),
                        "\" is not supported; use CPU or GPU."));
  }
  const int count = is_cpu ? cpu_count : gpu_count_;
  if (*spec.index < count) return;
  const std::string remedy =
      is_cpu ? message("Call set_logical_cpu_devices(", *spec.index + 1,
                       ") before creating the first strategy.")
             : std::string("GPUs need a LibTorch built with CUDA and a visible device.");
  throw Error(ErrorCode::kNotFound,
              message(who, ": device \"", spec.short_name(), "\" does not exist; this process has ",
                      describe(cpu_count, gpu_count_), ". ", remedy));
}

LogicalDeviceTable& logical_device_table() {
  static LogicalDeviceTable table(count_gpus());
  return table;
}

}  // namespace internal
}  // namespace tutti
