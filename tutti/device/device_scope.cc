// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/device_scope.h"

#include "tutti/base/error.h"
#include "tutti/device/thread_context.h"

namespace tutti {
namespace internal {

constinit thread_local ThreadContext thread_context;

}  // namespace internal

c10::Device torch_device(const DeviceSpec& spec) {
  const std::string type = spec.type.value_or("CPU");
  if (type == "CPU") return c10::Device(c10::DeviceType::CPU);
  if (type == "GPU") {
    return c10::Device(c10::DeviceType::CUDA,
                       static_cast<c10::DeviceIndex>(spec.index.value_or(0)));
  }
  throw Error(ErrorCode::kUnimplemented,
              message("torch_device: \"", spec, "\" is neither a CPU nor a GPU."));
}

DeviceScope::DeviceScope(const DeviceSpec& spec) : slot_(&spec) {
  if (const c10::Device device = torch_device(spec); !device.is_cpu()) guard_.reset_device(device);
}

}  // namespace tutti
