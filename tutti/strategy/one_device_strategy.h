// SPDX-License-Identifier: Apache-2.0
//
// Runs everything on one device: for trying out a program before distributing it.

#pragma once

#include <string>

#include "tutti/strategy/strategy.h"

namespace tutti {

struct OneDeviceStrategyOptions {
  /// The number of threads of LibTorch and BLAS; 0 means all usable cores.
  int threads_per_replica = 0;
};

/// One replica on `device`; run() calls the function on the calling thread. Thread-safe as Strategy
/// is.
class OneDeviceStrategy : public Strategy {
 public:
  /// Throws kNotFound when the device does not exist.
  explicit OneDeviceStrategy(const std::string& device,
                             const OneDeviceStrategyOptions& options = {});
};

}  // namespace tutti
