// SPDX-License-Identifier: Apache-2.0
//
// The constant properties of a strategy, passed to the constructor of StrategyExtended.

#pragma once

#include <memory>
#include <vector>

#include "tutti/device/device_spec.h"
#include "tutti/values/communication_options.h"

namespace tutti {

class ClusterResolver;
class WorkerGroup;

struct StrategyTraits {
  /// Where variables live; empty: on the devices of the replicas.
  std::vector<DeviceSpec> parameter_devices = {};

  /// Whether all replicas share one copy of the parameters (central storage).
  bool shares_parameters = false;

  /// Null unless the strategy was made from a cluster.
  std::shared_ptr<const ClusterResolver> cluster_resolver = nullptr;

  /// The workers that run in lock step, with equal numbers of replicas; null means this one alone.
  std::shared_ptr<WorkerGroup> workers = nullptr;

  /// Defaults of every call; options of a call take precedence.
  CommunicationOptions communication_options = {};

  // Properties that programs written for every strategy ask for.
  bool require_static_shapes = false;
  bool between_graph = false;
  bool should_init = true;
  bool should_checkpoint = true;
  bool should_save_summary = true;
  bool in_multi_worker_mode = false;
};

}  // namespace tutti
