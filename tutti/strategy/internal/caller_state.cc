// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/caller_state.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

// LibTorch 2.4 replaced the functions for one device type by general ones.
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

std::optional<OrdinaryState> OrdinaryState::of_this_thread() {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const at::RecordFunctionTLS& profilers = at::get_record_function_tls_();
  const auto& saved_tensors = at::SavedTensorDefaultHooks::get_tls_state();
  constexpr c10::DispatchKeySet kSpecial({c10::DispatchKey::Python,
                                          c10::DispatchKey::PythonTLSSnapshot,
                                          c10::DispatchKey::Functionalize});
  if (keys.included_.has_any(kSpecial) || !profilers.sorted_tls_callbacks_.empty() ||
      !profilers.tls_record_function_enabled_ || !saved_tensors.stack.empty() ||
      saved_tensors.disabled_error_message.has_value() ||
      at::functorch::functorchTLSAccessor() != nullptr ||
      c10::ThreadLocalDebugInfo::current() != nullptr) {
    return std::nullopt;
  }
  return OrdinaryState{keys, c10::AutogradState::get_tls_state()};
}

void OrdinaryState::apply() const {
  c10::impl::_force_tls_local_dispatch_key_set(keys);
  c10::AutogradState::set_tls_state(autograd);
}

namespace {

// The whole state of an ordinary thread, used to reset a different thread. The first call must come
// from an ordinary thread.
const at::ThreadLocalState& ordinary_thread() {
  static const auto* const state = new at::ThreadLocalState;
  return *state;
}

}  // namespace

CallerState::CallerState()
    : ordinary_(OrdinaryState::of_this_thread()), autocast_(AutocastState::of_this_thread()) {
  if (ordinary_) {
    ordinary_thread();
  } else {
    whole_.emplace();
  }
}

CallerState::Scope::Scope(const CallerState& state)
    : previous_autocast_(AutocastState::of_this_thread()),
      previous_(OrdinaryState::of_this_thread()) {
  if (previous_ && state.ordinary_) {
    state.ordinary_->apply();
  } else {
    previous_.reset();
    if (state.whole_) {
      guard_.emplace(*state.whole_);
    } else {
      guard_.emplace(ordinary_thread());
      state.ordinary_->apply();
    }
  }
  if (!(AutocastState::of_this_thread() == state.autocast_)) state.autocast_.apply();
}

CallerState::Scope::~Scope() {
  // Casts of weights are cached per thread. The next step has different weights, and
  // the caller's own autocast scope only clears the cache of its own thread.
  if (autocast_is_on()) at::autocast::clear_cache();
  if (previous_) {
    if (!OrdinaryState::of_this_thread()) {
      at::ThreadLocalState::setThreadLocalState(ordinary_thread());
    }
    previous_->apply();
  }
  if (!(AutocastState::of_this_thread() == previous_autocast_)) previous_autocast_.apply();
}

}  // namespace tutti::internal
