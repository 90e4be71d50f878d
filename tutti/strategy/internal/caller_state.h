// SPDX-License-Identifier: Apache-2.0
//
// The thread-local state that LibTorch calls depend on: grad mode, inference mode, dispatch
// keys, autocast. run() takes it from the caller and applies it on every replica.
// The source file handles the differences between LibTorch versions.

#pragma once

#include <optional>

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tutti::internal {

/// Autocast's dtypes and cache flag, which at::ThreadLocalState leaves out. A plain value.
struct AutocastState {
  at::ScalarType cpu_dtype;
  at::ScalarType gpu_dtype;
  bool cache_enabled;

  static AutocastState of_this_thread();
  void apply() const;

  bool operator==(const AutocastState&) const = default;
};

/// The state behind grad mode, inference mode and autocast, which is the entire state of an
/// ordinary thread. A plain value.
struct OrdinaryState {
  c10::impl::LocalDispatchKeySet keys;
  c10::AutogradState autograd;

  /// Returns nullopt if the thread has more state: a profiler, hooks on saved tensors, torch.func.
  static std::optional<OrdinaryState> of_this_thread();
  void apply() const;
};

/// A snapshot of the thread that makes it. Setting the whole state takes microseconds, so this is
/// only done if the thread on either side is not ordinary. Immutable: all replicas apply it
/// concurrently.
class CallerState {
 public:
  CallerState();

  /// Applies the snapshot for the life of the object, then restores what was there. An object
  /// belongs to the thread that makes it.
  class Scope {
   public:
    explicit Scope(const CallerState& state);
    ~Scope();

    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    AutocastState previous_autocast_;
    std::optional<OrdinaryState> previous_;
    std::optional<at::ThreadLocalStateGuard> guard_;  // if there is no previous_
  };

 private:
  std::optional<OrdinaryState> ordinary_;
  std::optional<at::ThreadLocalState> whole_;  // if it is not ordinary
  AutocastState autocast_;
};

}  // namespace tutti::internal
