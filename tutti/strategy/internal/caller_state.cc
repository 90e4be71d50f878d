// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/caller_state.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

// The functions for one device type were replaced by general ones in 2.4.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
#define TUTTI_AUTOCAST_BY_DEVICE 1
#else
#define TUTTI_AUTOCAST_BY_DEVICE 0
#endif

namespace tutti::internal {
namespace {

bool autocast_is_on() {
#if TUTTI_AUTOCAST_BY_DEVICE
  return at::autocast::is_autocast_enabled(at::kCPU) ||
         at::autocast::is_autocast_enabled(at::kCUDA);
#else
  return at::autocast::is_cpu_enabled() || at::autocast::is_enabled();
#endif
}

}  // namespace

AutocastState AutocastState::of_this_thread() {
#if TUTTI_AUTOCAST_BY_DEVICE
  return {at::autocast::get_autocast_dtype(at::kCPU), at::autocast::get_autocast_dtype(at::kCUDA),
          at::autocast::is_autocast_cache_enabled()};
#else
  return {at::autocast::get_autocast_cpu_dtype(), at::autocast::get_autocast_gpu_dtype(),
          at::autocast::is_autocast_cache_enabled()};
#endif
}

void AutocastState::apply() const {
#if TUTTI_AUTOCAST_BY_DEVICE
  at::autocast::set_autocast_dtype(at::kCPU, cpu_dtype);
  at::autocast::set_autocast_dtype(at::kCUDA, gpu_dtype);
#else
  at::autocast::set_autocast_cpu_dtype(cpu_dtype);
  at::autocast::set_autocast_gpu_dtype(gpu_dtype);
#endif
  at::autocast::set_autocast_cache_enabled(cache_enabled);
}

CallerState::Scope::Scope(const CallerState& state)
    : previous_(AutocastState::of_this_thread()), guard_(state.state_) {
  if (!(previous_ == state.autocast_)) state.autocast_.apply();
}

CallerState::Scope::~Scope() {
  // Casts of weights are cached by thread; the next step has other weights, and
  // the caller's own autocast scope clears only the cache of its thread.
  if (autocast_is_on()) at::autocast::clear_cache();
  if (!(AutocastState::of_this_thread() == previous_)) previous_.apply();
}

}  // namespace tutti::internal
