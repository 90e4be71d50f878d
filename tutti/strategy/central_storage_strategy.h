// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training on several devices of one machine with one copy of the parameters:
// replicas work on parts of the batch, share every variable, and write it together. It takes
// the memory of one model where MirroredStrategy takes that of one for each replica.

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

  /// Of every collective call; what a call sets itself wins.
  CommunicationOptions communication_options = {};

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};
};

/// One replica per compute device; replica 0 runs on the thread that calls run().
///
/// A variable has one copy, on the parameter device. A replica sees it through a leaf tensor
/// of its own, which shares the memory, so that gradients of replicas stay apart. What
/// replicas write is combined by the variable's aggregation, which it must have, and written
/// once while all wait. With one compute device variables are plain.
///
/// A variable that synchronises on read is no parameter but what each replica counts for
/// itself, so it is the same as under MirroredStrategy: one copy on every compute device,
/// combined when it is read from outside. Metrics therefore update without waiting, and a
/// program means the same under both strategies.
///
/// Datasets are split as under MirroredStrategy: every row reaches a replica, also those of a
/// last batch that does not fill all of them.
class CentralStorageStrategy : public Strategy {
 public:
  /// An empty list stands for all GPUs or, without a GPU, all logical CPUs. An empty
  /// parameter device is the compute device if there is only one, else CPU:0. Throws
  /// kNotFound for a device that does not exist, kInvalidArgument for a compute device that
  /// is listed twice or belongs to another process, and kUnimplemented if the parameters
  /// would not lie in the memory of every compute device.
  explicit CentralStorageStrategy(const std::vector<std::string>& compute_devices = {},
                                  const std::string& parameter_device = {},
                                  const CentralStorageStrategyOptions& options = {});
};

}  // namespace tutti
