// SPDX-License-Identifier: Apache-2.0
//
// Finds the cluster of this process from the environment, and describes it in one line. A
// half-set environment is an error: a job must not silently become many programs that each train
// alone.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// The cluster of this process, checked by validate_cluster_task().
///
/// An explicit cluster wins, and the environment is then ignored. Otherwise TF_CONFIG is used if it
/// names a cluster, else the variables of torchrun, else those of MPI launchers. If several are
/// present, they must agree on the number of workers and on the rank. Without a launcher, the
/// platform is used: a Slurm job step, a SageMaker job, numbered pods of Kubernetes. Otherwise, the
/// cluster is empty: the program runs alone. (A launcher that runs inside of a platform has one
/// process on each host, so the two need not agree. srun --mpi=pmi2 is both: without
/// TUTTI_RENDEZVOUS or MASTER_ADDR, its Slurm step is used.)
///
/// Throws kFailedPrecondition if variables are incomplete or contradict each other, and
/// kInvalidArgument if one is malformed; the message shows the variables, and says what is missing
/// and what to do.
std::shared_ptr<ClusterResolver> resolve_cluster(
    std::shared_ptr<ClusterResolver> explicit_cluster = nullptr);

/// What a cluster resolver said when each of its functions was called once. Another call may cost
/// requests, and find another cluster.
struct ResolvedCluster {
  std::shared_ptr<ClusterResolver> resolver;  ///< The one that was asked.
  ClusterSpec spec;
  std::optional<std::string> task_type;
  std::optional<int> task_id;
  std::string rendezvous_address;
  std::string job_id;
};

/// As resolve_cluster(), with what the resolver said.
ResolvedCluster resolve_cluster_once(std::shared_ptr<ClusterResolver> explicit_cluster = nullptr);

/// One line for the log, which prefixes it with "tutti: ":
/// "4 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG".
/// A chief counts as a worker. If an explicit cluster overrides the environment, the line ends with
/// "from an explicit cluster; TF_CONFIG is ignored".
std::string cluster_banner(const ClusterResolver& cluster, int replicas_per_worker);
std::string cluster_banner(const ResolvedCluster& cluster, int replicas_per_worker);

}  // namespace tutti
