// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's automatic mixed precision, as a scope for C++: operators that benefit compute in
// 16 bits, the others in float32.

#pragma once

#include <optional>
#include <string>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace tutti {

/// Enables autocast on the calling thread for the life of the object; Strategy::run passes it on to
/// the replicas. Wrap the forward pass and the loss. Converted weights are not cached between
/// operators, so that an update is never missed. CPUs support bfloat16 only (kInvalidArgument
/// otherwise); where it would crash the process, on a CPU with AMX under LibTorch 1, the
/// constructor throws kFailedPrecondition. An object belongs to the thread that makes it.
class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype = at::kBFloat16, at::DeviceType device = at::kCPU);
  ~Autocast();

  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  void* operator new(unsigned long) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  bool was_cached_;
  at::ScalarType previous_;
};

namespace internal {

/// Says what to do before bfloat16 can be used on this kind of CPU; empty if nothing. `isa_limit`
/// is the value of ONEDNN_MAX_CPU_ISA.
std::string bfloat16_advice(int torch_major, bool has_amx,
                            const std::optional<std::string>& isa_limit);

}  // namespace internal
}  // namespace tutti
