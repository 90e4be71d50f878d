// SPDX-License-Identifier: Apache-2.0
//
// Everything on one device: for trying out a program before it is distributed.

#pragma once

#include <string>

#include "tutti/strategy/strategy.h"

namespace tutti {

struct OneDeviceStrategyOptions {
  /// Threads of LibTorch and BLAS; 0 means all usable cores.
  int threads_per_replica = 0;
};

/// One replica on `device`; run() calls the function on the calling thread.
class OneDeviceStrategy : public Strategy {
 public:
  /// Throws kNotFound when the device does not exist.
  explicit OneDeviceStrategy(const std::string& device,
                             const OneDeviceStrategyOptions& options = {});
};

}  // namespace tutti
