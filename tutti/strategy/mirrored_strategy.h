// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training on several devices of one machine: every replica works on
// a part of the batch, and values are combined by all-reduce.

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

struct MirroredStrategyOptions {
  /// How values are combined; null means select_cross_device_ops().
  std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr;

  /// Of every collective call; what a call sets itself wins.
  CommunicationOptions communication_options = {};

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};
};

/// One replica per device; replica 0 runs on the thread that calls run().
class MirroredStrategy : public Strategy {
 public:
  /// An empty list stands for all GPUs or, without a GPU, all logical CPUs.
  /// Throws kNotFound for a device that does not exist and kInvalidArgument for
  /// one that is listed twice or belongs to another process.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            const MirroredStrategyOptions& options = {});
};

}  // namespace tutti
