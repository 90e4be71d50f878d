// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "tutti/base/error.h"

namespace tutti {
namespace {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
bool is_on(at::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
void set_on(at::DeviceType device, bool on) { at::autocast::set_autocast_enabled(device, on); }
at::ScalarType dtype_of(at::DeviceType device) { return at::autocast::get_autocast_dtype(device); }
void set_dtype(at::DeviceType device, at::ScalarType dtype) {
  at::autocast::set_autocast_dtype(device, dtype);
}
#else
bool is_on(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::is_cpu_enabled() : at::autocast::is_enabled();
}
void set_on(at::DeviceType device, bool on) {
  device == at::kCPU ? at::autocast::set_cpu_enabled(on) : at::autocast::set_enabled(on);
}
at::ScalarType dtype_of(at::DeviceType device) {
  return device == at::kCPU ? at::autocast::get_autocast_cpu_dtype()
                            : at::autocast::get_autocast_gpu_dtype();
}
void set_dtype(at::DeviceType device, at::ScalarType dtype) {
  device == at::kCPU ? at::autocast::set_autocast_cpu_dtype(dtype)
                     : at::autocast::set_autocast_gpu_dtype(dtype);
}
#endif

}  // namespace

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : device_(device),
      was_enabled_(is_on(device)),
      was_cached_(at::autocast::is_autocast_cache_enabled()),
      previous_(dtype_of(device)) {
  if (device != at::kCPU && device != at::kCUDA) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Autocast: there is no mixed precision for ", device,
                        " devices; use at::kCPU or at::kCUDA."));
  }
  if (dtype != at::kBFloat16 && !(dtype == at::kHalf && device == at::kCUDA)) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Autocast: ", c10::toString(dtype), " on ", device,
                        " is not possible; CPUs take bfloat16, GPUs float16 or bfloat16."));
  }
  set_on(device, true);
  set_dtype(device, dtype);
  at::autocast::set_autocast_cache_enabled(false);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(was_cached_);
  set_dtype(device_, previous_);
  set_on(device_, was_enabled_);
}

}  // namespace tutti
