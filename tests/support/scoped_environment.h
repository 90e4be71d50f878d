// SPDX-License-Identifier: Apache-2.0
//
// Environment variables for as long as an object lives.

#pragma once

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace tutti::test {

/// Unsets everything that describes a cluster, sets the given variables, and restores all in its
/// destructor. For tests with one thread: it calls setenv.
class ScopedEnvironment {
 public:
  ScopedEnvironment(std::initializer_list<std::pair<const std::string, std::string>> variables = {})
      : ScopedEnvironment(std::map<std::string, std::string>(variables)) {}

  explicit ScopedEnvironment(const std::map<std::string, std::string>& variables) {
    for (const char* name : {"TF_CONFIG",
                             "RANK",
                             "WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE",
                             "TORCHELASTIC_RUN_ID",
                             "TORCHELASTIC_RESTART_COUNT",
                             "TORCHELASTIC_USE_AGENT_STORE",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "OMPI_MCA_ess_base_jobid",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "PMIX_RANK",
                             "PMIX_NAMESPACE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "TUTTI_RENDEZVOUS",
                             "TUTTI_POD_COUNT",
                             "TUTTI_POD_SERVICE",
                             "TUTTI_POD_PORT",
                             "JOB_COMPLETION_INDEX",
                             "HOSTNAME",
                             "KUBERNETES_SERVICE_HOST",
                             "KUBERNETES_SERVICE_PORT",
                             "PET_NNODES",
                             "PET_NPROC_PER_NODE",
                             "PET_N_PROC_PER_NODE",
                             "PET_RDZV_ENDPOINT",
                             "PET_RDZV_BACKEND",
                             "GCE_METADATA_HOST",
                             "SM_HOSTS",
                             "SM_CURRENT_HOST",
                             "CUDA_VISIBLE_DEVICES",
                             "SLURM_PROCID",
                             "SLURM_NODEID",
                             "SLURM_LOCALID",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_NODELIST",
                             "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_DISTRIBUTION",
                             "SLURM_DIST_PLANESIZE",
                             "SLURM_GPUS_ON_NODE",
                             "SLURM_GPUS_PER_TASK",
                             "SLURM_RESTART_COUNT"}) {
      remember(name);
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) set(name, value);
  }

  ~ScopedEnvironment() {
    for (const auto& [name, value] : before_) {
      if (value) {
        setenv(name.c_str(), value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
  }

  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

  void set(const std::string& name, const std::string& value) {
    remember(name);
    setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  void remember(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    before_.emplace(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }

  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace tutti::test
