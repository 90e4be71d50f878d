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
  /// The devices of this worker, one replica on each. Empty stands for all GPUs or, without a GPU,
  /// CPU:0.
  std::vector<std::string> devices = {};

  /// Of every collective call; what a call sets itself wins. `implementation` chooses the way
  /// between workers; `timeout` is how long a worker waits for the others in one call: if unset,
  /// the seconds of TUTTI_COMMUNICATION_TIMEOUT, else five minutes.
  CommunicationOptions communication_options = {};

  /// The job secret, and certificates for encrypted connections. Needed as soon as an address is
  /// not loopback; what is not set is looked for in the environment. docs/guide/security.md.
  rpc::SecurityOptions security = {};

  /// How long to wait for all workers to come: if unset, the seconds of TUTTI_JOIN_TIMEOUT, else
  /// five minutes.
  std::optional<std::chrono::milliseconds> join_timeout = std::nullopt;

  /// Threads, turns and time limits of the replicas.
  ReplicaRunnerOptions runner = {};

  /// The workers, if they are connected already (group/connect.h): no cluster is resolved, the
  /// environment is not asked, and cluster_resolver() is null. The timeout of the group holds
  /// wherever no call has one of its own.
  std::shared_ptr<WorkerGroup> workers = nullptr;
};

/// W workers with R replicas each: replica i of worker w has the global id w * R + i. A chief is
/// worker 0. An evaluator, and a program without a cluster, gets a strategy of its own that waits
/// for nobody.
///
/// A worker that fails ends the job: every other one gets kCancelled with its error at its next
/// call, or kUnavailable when it is gone.
class MultiWorkerMirroredStrategy : public Strategy {
 public:
  /// Waits until all workers are there. Without a resolver the environment decides
  /// (resolve_cluster.h). Throws kInvalidArgument for a cluster that cannot be, kDeadlineExceeded
  /// or kUnavailable when workers are missing, kFailedPrecondition when workers do not fit
  /// together.
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<ClusterResolver> cluster_resolver = nullptr,
                                       const MultiWorkerMirroredStrategyOptions& options = {});
};

}  // namespace tutti
