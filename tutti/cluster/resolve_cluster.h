// SPDX-License-Identifier: Apache-2.0
//
// Finds the cluster of this process by what the environment shows, and says in one line what was
// found. Something half set is an error: a job must not quietly become many programs that train
// alone.

#pragma once

#include <memory>
#include <string>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// The cluster of this process, checked by validate_cluster_task().
///
/// An explicit cluster wins; the environment is not looked at then. Otherwise TF_CONFIG is taken if
/// it names a cluster, else what torchrun sets, else what MPI launchers set, else an empty cluster:
/// the program runs alone. Where more than one of them is there, they must agree on the number of
/// workers and on the rank.
///
/// Throws kFailedPrecondition if something is set only in part or two things contradict each other,
/// and kInvalidArgument if something is malformed; the message shows the variables, says what is
/// missing and what to do.
std::shared_ptr<ClusterResolver> resolve_cluster(
    std::shared_ptr<ClusterResolver> explicit_cluster = nullptr);

/// One line for the log, which puts "tutti: " before it:
/// "4 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG".
/// A chief counts as a worker. If an explicit cluster leaves something in the environment aside,
/// the line ends "from an explicit cluster; TF_CONFIG is ignored".
std::string cluster_banner(const ClusterResolver& cluster, int replicas_per_worker);

}  // namespace tutti
