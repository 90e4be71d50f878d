// SPDX-License-Identifier: Apache-2.0
//
// What a thread's LibTorch calls depend on: grad mode, inference mode, dispatch
// keys, autocast. run() takes it from the caller and applies it on every replica.
// The differences between LibTorch versions are in the source file.

#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/ScalarType.h>

namespace tutti::internal {

/// Autocast's dtypes and cache flag, which at::ThreadLocalState leaves out.
struct AutocastState {
  at::ScalarType cpu_dtype;
  at::ScalarType gpu_dtype;
  bool cache_enabled;

  static AutocastState of_this_thread();
  void apply() const;

  bool operator==(const AutocastState&) const = default;
};

/// A snapshot of the thread that makes it.
class CallerState {
 public:
  CallerState() : autocast_(AutocastState::of_this_thread()) {}

  /// Applies the snapshot for the life of the object, then restores what was there.
  class Scope {
   public:
    explicit Scope(const CallerState& state);
    ~Scope();

    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    AutocastState previous_;
    at::ThreadLocalStateGuard guard_;
  };

 private:
  at::ThreadLocalState state_;
  AutocastState autocast_;
};

}  // namespace tutti::internal
