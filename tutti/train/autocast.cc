// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/autocast.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cctype>

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "tutti/base/env.h"
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

bool has_amx() {
#if defined(__x86_64__)
  constexpr unsigned kAmxBf16 = 1U << 22;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAmxBf16) != 0;
#else
  return false;
#endif
}

// oneDNN reads either variable when it is first used.
std::optional<std::string> isa_limit() {
  const auto limit = read_env("ONEDNN_MAX_CPU_ISA");
  return limit ? limit : read_env("DNNL_MAX_CPU_ISA");
}

}  // namespace

namespace internal {

std::string bfloat16_advice(int torch_major, bool has_amx,
                            const std::optional<std::string>& isa_limit) {
  if (torch_major >= 2 || !has_amx) return "";
  // Letters may be of either case. "all" and "default" are not limits; limits with AMX do not help.
  std::string limit = isa_limit.value_or("");
  std::transform(limit.begin(), limit.end(), limit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (limit == "SSE41") return "";
  if (limit.starts_with("AVX") && limit.find("AMX") == std::string::npos) return "";
  return message("the oneDNN of LibTorch ", torch_major,
                 " crashes (illegal instruction) in the first product of bfloat16 "
                 "matrices on a CPU with AMX such as this one. Set "
                 "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment before the program "
                 "starts, or use LibTorch 2.");
}

}  // namespace internal

Autocast::Autocast(at::ScalarType dtype, at::DeviceType device)
    : device_(device),
      was_enabled_(is_on(device)),
      was_cached_(at::autocast::is_autocast_cache_enabled()),
      previous_(dtype_of(device)) {
  if (device != at::kCPU && device != at::kCUDA) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Autocast: mixed precision is not available on ", device,
                        " devices; use at::kCPU or at::kCUDA."));
  }
  if (dtype != at::kBFloat16 && !(dtype == at::kHalf && device == at::kCUDA)) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Autocast: ", c10::toString(dtype), " on ", device,
                        " is not supported; CPUs take bfloat16, GPUs float16 or bfloat16."));
  }
  if (device == at::kCPU) {
    static const std::string advice =
        internal::bfloat16_advice(TORCH_VERSION_MAJOR, has_amx(), isa_limit());
    if (!advice.empty()) {
      throw Error(ErrorCode::kFailedPrecondition, message("Autocast: ", advice));
    }
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
