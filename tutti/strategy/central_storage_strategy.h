// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training on several devices of one machine with one copy of the parameters:
// replicas work on parts of the batch, share every variable, and write it together. It needs
// memory for one model, where MirroredStrategy needs memory for one per replica.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

struct CentralStorageStrategyOptions {
  /// How values are combined; null means select_cross_device_ops(). The bits are those of
  /// MirroredStrategy on the same devices.
  std::shared_ptr<CrossDeviceOps> cross_device_ops = nullptr;

  /// Defaults of every collective call; options set in a call take precedence.
  CommunicationOptions communication_options = {};

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};
};

/// One replica per compute device; replica 0 runs on the thread that calls run().
///
/// A variable has one copy, on the parameter device. Each replica sees it through its own leaf
/// tensor, which shares the memory, so that gradients of replicas stay separate. Values that
/// replicas write are combined by the variable's aggregation, which is required, and written
/// once while all replicas wait. With one compute device, variables are plain.
///
/// A variable that synchronises on read is not a parameter but a value that each replica
/// accumulates independently, so it behaves as under MirroredStrategy: one copy on every compute
/// device, combined when it is read from outside. Metrics therefore update without waiting, and
/// a program has the same meaning under both strategies.
///
/// Datasets are split as under MirroredStrategy: every row reaches a replica, including those of a
/// last batch that is too small for all replicas. Thread-safe as Strategy is.
class CentralStorageStrategy : public Strategy {
 public:
  /// An empty list means all GPUs or, without a GPU, all logical CPUs. An empty
  /// parameter device means the compute device if there is only one, otherwise CPU:0. Throws
  /// kNotFound for a device that does not exist, kInvalidArgument for a compute device that
  /// is listed twice or belongs to another process, and kUnimplemented if the parameters
  /// would not be in the memory of every compute device.
  explicit CentralStorageStrategy(const std::vector<std::string>& compute_devices = {},
                                  const std::string& parameter_device = {},
                                  const CentralStorageStrategyOptions& options = {});
};

}  // namespace tutti
