// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's automatic mixed precision, as a scope for C++: operators that gain by it compute in
// 16 bits, others in float32.

#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace tutti {

/// Autocast on the calling thread for the life of the object; Strategy::run takes it over to the
/// replicas. Wrap the forward pass and the loss. Converted weights are not kept between operators,
/// so that an update is never missed. CPUs know bfloat16 only (kInvalidArgument otherwise).
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

}  // namespace tutti
