// SPDX-License-Identifier: Apache-2.0
//
// The cluster of a Slurm job step: the tasks that one srun starts. Reads only the variables that
// srun sets; neither libslurm nor Slurm's commands are needed.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/task_roles.h"

namespace tutti {

struct SlurmClusterResolverOptions {
  /// Number of tasks of each job. Empty: all are workers.
  std::map<std::string, int> jobs = {};

  /// The first task of each node listens on this port, the next one on the next port.
  int port_base = 8888;

  /// Without these, the number of devices in CUDA_VISIBLE_DEVICES, else SLURM_GPUS_ON_NODE, is
  /// divided equally among the tasks of a node. Zero means CPUs only.
  std::optional<int> gpus_per_node = std::nullopt;
  std::optional<int> gpus_per_task = std::nullopt;

  /// The same number for every node, or one for each host. Without it, that of the step.
  std::variant<std::monostate, int, std::map<std::string, int>> tasks_per_node = {};

  std::string rpc_layer = "grpc";
};

/// Reads SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE
/// again in each call. Hosts are named as Slurm names them and keep the order of the node list,
/// which is that of ranks; srun's distributions block, cyclic and plane are supported. Jobs,
/// sorted by name, take consecutive ranks. Every function throws kFailedPrecondition outside of a
/// job step or if the numbers contradict each other, kInvalidArgument if a variable is malformed.
///
/// Threads: as ClusterResolver; the environment must not change meanwhile.
class SlurmClusterResolver : public ClusterResolver {
 public:
  /// Throws kInvalidArgument for numbers that are negative, and for ports that do not exist.
  explicit SlurmClusterResolver(SlurmClusterResolverOptions options = {});

  ClusterSpec cluster_spec() const override;

  /// {{"GPU", n}} with the number of GPUs of each task, which is the same for all; empty if 0.
  std::map<std::string, int> num_accelerators(
      const std::optional<std::string>& task_type = std::nullopt,
      std::optional<int> task_id = std::nullopt) const override;

  /// The job and the index of this process.
  TaskName get_task_info() const;

  /// This task's GPUs, as indices of the devices that are visible to this process: name them to the
  /// strategy, as "GPU:2". The environment is not changed.
  std::vector<int> gpus() const;

  /// SLURM_PROCID and SLURM_STEP_NUM_TASKS.
  int rank() const;
  int num_tasks() const;

  /// Job, step and number of restarts.
  std::string job_id() const override;

  std::string source() const override { return "Slurm"; }
  bool is_explicit() const override { return false; }

 protected:
  std::optional<std::string> own_task_type() const override { return get_task_info().job; }
  std::optional<int> own_task_id() const override { return get_task_info().index; }
  std::string own_rpc_layer() const override { return options_.rpc_layer; }

 private:
  struct Step;

  Step read_step() const;
  int count_gpus_per_task(const Step& step) const;
  TaskName task_of(const Step& step, int rank) const;

  SlurmClusterResolverOptions options_;
};

}  // namespace tutti
