// SPDX-License-Identifier: Apache-2.0
//
// The constant properties of a strategy, passed to the constructor of StrategyExtended.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/device/device_spec.h"
#include "tutti/values/communication_options.h"

namespace tutti {

class ClusterResolver;
class StrategyExtended;
class WorkerGroup;

/// What the old names of compat/ mean for a strategy. A plain value.
struct CompatTraits {
  /// What ConfigProto::isolate_session_state becomes.
  bool isolates_session_state = false;

  /// Whether make_dataset_iterator() takes batches of one replica's size, and then, whether it
  /// shards them over the workers.
  bool takes_replica_batches = false;
  bool shards_replica_batches = false;
};

/// A plain value; constant once a strategy is in use.
struct StrategyTraits {
  /// Where variables live; empty: on the devices of the replicas.
  std::vector<DeviceSpec> parameter_devices = {};

  /// Whether all replicas share one copy of the parameters (central storage).
  bool shares_parameters = false;

  /// Whether the context of its replica is valid on every thread, also outside of scopes and runs,
  /// as that of the default strategy.
  bool is_ambient = false;

  /// Null unless the strategy was made from a cluster.
  std::shared_ptr<const ClusterResolver> cluster_resolver = nullptr;

  /// The workers that run in lock step, with equal numbers of replicas; null means this one alone.
  std::shared_ptr<WorkerGroup> workers = nullptr;

  /// Makes the strategy of one worker of a cluster, with the devices and options of this one.
  /// If it is null, `why_one_process` says why.
  std::function<std::shared_ptr<StrategyExtended>(std::shared_ptr<ClusterResolver>)> make_worker =
      nullptr;
  std::string why_one_process = "it runs in one process only";

  /// Defaults of every call; options of a call take precedence.
  CommunicationOptions communication_options = {};

  // Properties that programs written for every strategy ask for.
  bool require_static_shapes = false;
  bool between_graph = false;
  bool should_init = true;
  bool should_checkpoint = true;
  bool should_save_summary = true;
  bool in_multi_worker_mode = false;

  CompatTraits compat = {};
};

}  // namespace tutti
