// SPDX-License-Identifier: Apache-2.0
//
// The roles in a cluster of the jobs chief, worker, ps and evaluator: which task is the chief,
// which rank a task has, which task leads. A chief is the first of the workers. Evaluators have no
// part in training. An empty cluster is a program that runs alone: one worker, its own chief.

#pragma once

#include <optional>
#include <string>

#include "tutti/cluster/cluster_spec.h"

namespace tutti {

/// One task of a cluster. A plain value.
struct TaskName {
  std::string job;
  int index = 0;

  /// "/job:worker/replica:0/task:1"
  std::string to_string() const;

  bool operator==(const TaskName&) const = default;
};

/// Checks a cluster and, if given, this process's task in it. Every job is chief, worker, ps or
/// evaluator; there is at most one chief and one evaluator; every address that is not empty is
/// "host:port" and unique; type and index are both given or both omitted, and name a task of the
/// cluster (an evaluator need not be in it). Throws kInvalidArgument.
void validate_cluster_task(const ClusterSpec& spec, const std::optional<std::string>& task_type,
                           std::optional<int> task_id);

// The following check their arguments with validate_cluster_task() first. Omit type and index only
// with an empty cluster.

/// True for the chief, for the first worker if there is no chief, for an evaluator, and for a
/// program that runs alone.
bool is_chief(const ClusterSpec& spec, const std::optional<std::string>& task_type = std::nullopt,
              std::optional<int> task_id = std::nullopt);

/// Number of tasks that work together with one of this type: chief and workers, or the evaluators.
/// Throws kInvalidArgument for a ps.
int worker_count(const ClusterSpec& spec,
                 const std::optional<std::string>& task_type = std::nullopt);

/// The rank among those tasks: the chief is 0, and workers follow in the order of their indices; an
/// evaluator has its position among the evaluators. Throws kInvalidArgument for a ps.
int id_in_cluster(const ClusterSpec& spec,
                  const std::optional<std::string>& task_type = std::nullopt,
                  std::optional<int> task_id = std::nullopt);

/// The task that has rank 0 among chief and workers, "/job:worker/replica:0/task:0". Empty for an
/// evaluator and in an empty cluster.
std::string collective_leader(const ClusterSpec& spec,
                              const std::optional<std::string>& task_type = std::nullopt,
                              std::optional<int> task_id = std::nullopt);

/// The task at which all others meet: the first ps if there is one, else the chief, else the first
/// worker. Nothing, or an empty string, if there are none of these.
std::optional<TaskName> coordination_leader_task(const ClusterSpec& spec);
std::string coordination_leader(const ClusterSpec& spec);

/// The task with this rank among chief and workers. Throws kNotFound if no task has it.
TaskName task_of_rank(const ClusterSpec& spec, int rank);

}  // namespace tutti
