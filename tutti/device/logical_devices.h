// SPDX-License-Identifier: Apache-2.0
//
// Which devices this process has. GPUs are what LibTorch finds. CPU devices are logical: CPU:0 ...
// CPU:k-1 exist, where k was passed to set_logical_cpu_devices(k) or, if it was not called, is one
// more than the highest CPU index in the first strategy's device list.

#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/device/device_spec.h"

namespace tutti {

/// A plain value.
struct LogicalDevice {
  std::string name;  ///< "/device:CPU:0"
  std::string type;  ///< "CPU"

  bool operator==(const LogicalDevice&) const = default;
};

/// Splits the CPU into `count` logical devices. Call it before creating the first strategy;
/// afterwards only the same count is accepted (kFailedPrecondition). Thread-safe.
void set_logical_cpu_devices(int count);

/// The devices that exist now, CPUs first; of one type if it is given. Thread-safe.
std::vector<LogicalDevice> list_logical_devices(std::string_view type = {});

namespace internal {

/// The table behind the functions above; one per process, except in tests. Thread-safe.
class LogicalDeviceTable {
 public:
  explicit LogicalDeviceTable(int gpu_count) : gpu_count_(gpu_count) {}

  void set_cpu_count(int count);
  std::vector<LogicalDevice> list(std::string_view type) const;

  /// Turns the device list of a strategy into canonical specs. An empty list means all GPUs or, if
  /// there are none, all CPUs. Fixes the number of CPUs if that is still open. Errors begin with
  /// `who`, the strategy's name.
  std::vector<DeviceSpec> resolve(std::string_view who, const std::vector<std::string>& names);

  /// Throws, beginning with `who`, unless this process has the device. While the number of CPUs is
  /// open, every CPU index exists.
  void check(std::string_view who, const DeviceSpec& spec) const;

 private:
  int cpu_count() const { return is_open() ? 1 : cpu_count_.load(std::memory_order_relaxed); }
  bool is_open() const { return cpu_count_.load(std::memory_order_relaxed) == 0; }
  void check_exists(std::string_view who, const DeviceSpec& spec, int cpu_count) const;

  const int gpu_count_;
  mutable Mutex mutex_;
  std::atomic<int> cpu_count_{0};  // written under the mutex; 0 while it is open
};

LogicalDeviceTable& logical_device_table();

}  // namespace internal
}  // namespace tutti
