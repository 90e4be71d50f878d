// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training on several machines in lock step: every worker runs the same program, has
// the same number of replicas, and values are combined over the replicas of all workers, with the
// bits that one machine with as many replicas would give. docs/guide/many-workers.md shows how to
// start.

#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/rpc/security.h"
#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy.h"

namespace tutti {

class WorkerGroup;

struct MultiWorkerMirroredStrategyOptions {
  /// The devices of this worker, one replica on each. Empty means all GPUs or, without a GPU,
  /// CPU:0.
  std::vector<std::string> devices = {};

  /// Defaults of every collective call; options set in a call take precedence. `implementation`
  /// selects the transport between workers; `timeout` is how long a worker waits for the others in
  /// one call: if unset, the seconds in TUTTI_COMMUNICATION_TIMEOUT, otherwise five minutes.
  CommunicationOptions communication_options = {};

  /// The job secret, and certificates for encrypted connections. Required if any address is not
  /// loopback; unset fields are read from the environment (docs/guide/security.md).
  rpc::SecurityOptions security = {};

  /// How long to wait for all workers to join: if unset, the seconds in TUTTI_JOIN_TIMEOUT,
  /// otherwise five minutes.
  std::optional<std::chrono::milliseconds> join_timeout = std::nullopt;

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};

  /// The workers, if they are connected already (group/connect.h): no cluster is resolved, the
  /// environment is not asked, and cluster_resolver() is null. The timeout of the group holds
  /// wherever no call has one of its own.
  std::shared_ptr<WorkerGroup> workers = nullptr;
};

/// W workers with R replicas each: replica i of worker w has the global id w * R + i. A chief is
/// worker 0. An evaluator, or a program without a cluster, gets a separate strategy that does not
/// wait for other workers.
///
/// A failing worker ends the job: at its next call every other worker gets kCancelled with the
/// error, or kUnavailable if the worker is gone. Thread-safe as Strategy is, but all workers must
/// make the same calls in the same order.
class MultiWorkerMirroredStrategy : public Strategy {
 public:
  /// Waits until all workers have joined. Without a resolver the environment decides
  /// (resolve_cluster.h). Throws kInvalidArgument for an invalid cluster, kDeadlineExceeded or
  /// kUnavailable if workers are missing, kFailedPrecondition if workers are incompatible.
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<ClusterResolver> cluster_resolver = nullptr,
                                       const MultiWorkerMirroredStrategyOptions& options = {});
};

}  // namespace tutti
