// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training on several devices of one machine: every replica works on
// a part of the batch, and values are combined by all-reduce.

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_spec.h"
#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

struct MirroredStrategyOptions {
  /// How values are combined; null means select_cross_device_ops().
  std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr;

  /// Defaults of every collective call; options set in a call take precedence.
  CommunicationOptions communication_options = {};

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};
};

/// One replica per device; replica 0 runs on the thread that calls run(). Thread-safe as Strategy
/// is.
class MirroredStrategy : public Strategy {
 public:
  /// An empty list means all GPUs or, without a GPU, all logical CPUs.
  /// Throws kNotFound for a device that does not exist and kInvalidArgument for
  /// one that is listed twice or belongs to another process.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            const MirroredStrategyOptions& options = {});

  /// Turns this handle into the strategy of one worker of a cluster, with the same devices and
  /// options; waits for the other workers as MultiWorkerMirroredStrategy does. Call it before
  /// using the strategy: throws kFailedPrecondition if it has a variable or another handle.
  void configure(const ClusterSpec& cluster_spec, const std::string& task_type, int task_id);
};

}  // namespace tutti
