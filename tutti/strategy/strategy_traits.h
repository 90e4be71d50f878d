// SPDX-License-Identifier: Apache-2.0
//
// What is constant about a strategy, given to the constructor of StrategyExtended.

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

  /// All replicas' parameters lie in one memory (central storage).
  bool shares_parameters = false;

  /// Null unless the strategy was made from a cluster.
  std::shared_ptr<const ClusterResolver> cluster_resolver = nullptr;

  /// The workers that run in lock step, each with as many replicas; null: this one alone.
  std::shared_ptr<WorkerGroup> workers = nullptr;

  /// Options of every call; those of a call win.
  CommunicationOptions communication_options = {};

  // What a program that is written for every strategy asks.
  bool require_static_shapes = false;
  bool between_graph = false;
  bool should_init = true;
  bool should_checkpoint = true;
  bool should_save_summary = true;
  bool in_multi_worker_mode = false;
};

}  // namespace tutti
