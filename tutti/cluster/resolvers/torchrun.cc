// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/torchrun.h"

#include "tutti/base/address.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

constexpr const char* kTorchrun = "torchrun environment";
constexpr const char* kTorchrunAdvice =
    "Start the program with torchrun --no_python, set the missing variables, unset the others, or "
    "give the cluster in the program.";

// Reads LOCAL_RANK and LOCAL_WORLD_SIZE if they are set.
void read_local_ranks(RankEnvironment& ranks) {
  if (read_env("LOCAL_WORLD_SIZE")) {
    ranks.local_size =
        internal::read_number(kTorchrun, "LOCAL_WORLD_SIZE", 1, ClusterSpec::kLastIndex);
  }
  if (read_env("LOCAL_RANK")) {
    ranks.local_rank = internal::read_number(kTorchrun, "LOCAL_RANK", 0, ClusterSpec::kLastIndex);
  }
  if (ranks.local_size && *ranks.local_size > ranks.size) {
    internal::refuse_environment(kTorchrun,
                                 internal::describe_variables({"LOCAL_WORLD_SIZE", "WORLD_SIZE"}) +
                                     ": one host cannot have more processes than the whole job",
                                 "Correct them.");
  }
  if (ranks.local_rank && *ranks.local_rank >= ranks.local_size.value_or(ranks.size)) {
    const char* limit = ranks.local_size ? "LOCAL_WORLD_SIZE" : "WORLD_SIZE";
    internal::refuse_environment(kTorchrun,
                                 internal::describe_variables({"LOCAL_RANK", limit}) +
                                     ": a local rank must be less than the number of processes",
                                 "Correct them.");
  }
}

// Kubeflow's PyTorchJob sets variables for torchrun (PET_...), and in some cases those of its
// processes, too: one process per pod that is not started by torchrun.
void check_pytorch_job() {
  if (!read_env("RANK") && read_env("PET_RDZV_ENDPOINT")) {
    internal::refuse_environment(
        kTorchrun, internal::describe_variables({"PET_RDZV_ENDPOINT", "PET_NNODES", "RANK"}),
        "An elastic PyTorchJob gives ranks only through torchrun: start the program with torchrun "
        "--no_python.");
  }
  if (read_env("LOCAL_RANK")) return;
  for (const char* name : {"PET_NPROC_PER_NODE", "PET_N_PROC_PER_NODE"}) {
    const std::string count = read_env(name).value_or("1");
    const bool is_number = count.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || count == "1") continue;
    internal::refuse_environment(
        kTorchrun, internal::describe_variables({name, "RANK", "WORLD_SIZE", "LOCAL_RANK"}),
        "The PyTorchJob expects torchrun to start that many processes in each pod: start the "
        "program with torchrun --no_python, or leave nprocPerNode out.");
  }
}

}  // namespace

RankEnvironment TorchrunClusterResolver::ranks() const {
  check_pytorch_job();
  if (!read_env("RANK") || !read_env("WORLD_SIZE")) {
    internal::refuse_environment(kTorchrun,
                                 internal::describe_variables({"RANK", "WORLD_SIZE", "MASTER_ADDR",
                                                               "MASTER_PORT", "LOCAL_RANK"}),
                                 kTorchrunAdvice);
  }
  RankEnvironment ranks;
  ranks.size = internal::read_number(kTorchrun, "WORLD_SIZE", 1, ClusterSpec::kLastIndex);
  ranks.rank = internal::read_number(kTorchrun, "RANK", 0, ClusterSpec::kLastIndex);
  if (ranks.rank >= ranks.size) {
    internal::refuse_environment(kTorchrun,
                                 internal::describe_variables({"RANK", "WORLD_SIZE"}) +
                                     ": ranks range from 0 to WORLD_SIZE - 1",
                                 "Correct them.");
  }
  read_local_ranks(ranks);
  return ranks;
}

std::string TorchrunClusterResolver::rendezvous_address() const {
  if (read_env("TUTTI_RENDEZVOUS")) return internal::rendezvous_variable();
  Address address = internal::master_variables(
      kTorchrun,
      "The processes have no address to meet at: set MASTER_ADDR to the host of rank 0 and "
      "MASTER_PORT to a free port there, the same for all ranks.");
  if (read_env("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    if (address.port == 65535) {
      internal::refuse_environment(
          kTorchrun, "torchrun itself uses MASTER_PORT=\"65535\", and there is no port after it",
          "Give torchrun a different --master_port, or set TUTTI_RENDEZVOUS to host:port of rank "
          "0.");
    }
    ++address.port;
  }
  return address.to_string();
}

std::string TorchrunClusterResolver::job_id() const {
  const auto run = read_env("TORCHELASTIC_RUN_ID");
  if (!run || *run == "none") return "";
  return message("torchrun ", *run, " restart ",
                 read_env("TORCHELASTIC_RESTART_COUNT").value_or("0"));
}

}  // namespace tutti
