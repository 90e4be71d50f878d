// SPDX-License-Identifier: Apache-2.0
//
// The device a thread computes on, and the LibTorch device behind a name. GPUs
// are reached through c10's generic guards: no CUDA header, any LibTorch build.

#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include "tutti/device/device_spec.h"
#include "tutti/device/thread_context.h"

namespace tutti {

/// "CPU:n" maps to LibTorch's only CPU, "GPU:n" to CUDA device n. Throws kUnimplemented for any
/// other type.
c10::Device torch_device(const DeviceSpec& spec);

/// The innermost DeviceScope's device on this thread, or null outside of all scopes.
inline const DeviceSpec* current_device() { return internal::thread_context.device; }

/// Makes a device current on this thread for the lifetime of the object. `spec` must outlive it.
/// Not thread-safe; scopes nest.
class DeviceScope {
 public:
  explicit DeviceScope(const DeviceSpec& spec);
  explicit DeviceScope(DeviceSpec&&) = delete;
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  c10::OptionalDeviceGuard guard_;
  internal::SlotScope<&internal::ThreadContext::device> slot_;
};

}  // namespace tutti
