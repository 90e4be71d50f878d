// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/mpi.h"

#include <cstdint>

#include "tutti/base/address.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

constexpr const char* kMpi = "MPI environment";
constexpr const char* kMpiAdvice =
    "Start the program with mpirun or mpiexec, unset the leftovers of another launcher, or give "
    "the cluster in the program.";

struct MpiVariables {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr MpiVariables kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                   "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr MpiVariables kPmi = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

bool has_mpi(const MpiVariables& names) { return internal::any_is_set({names.rank, names.size}); }

[[noreturn]] void refuse_mpi(const std::vector<const char*>& names, const std::string& why) {
  internal::refuse_environment(kMpi, internal::describe_variables(names) + why, kMpiAdvice);
}

RankEnvironment read_mpi(const MpiVariables& names) {
  if (!read_env(names.rank) || !read_env(names.size)) refuse_mpi({names.rank, names.size}, "");
  RankEnvironment ranks;
  ranks.size = internal::read_number(kMpi, names.size, 1, ClusterSpec::kLastIndex);
  ranks.rank = internal::read_number(kMpi, names.rank, 0, ClusterSpec::kLastIndex);
  if (ranks.rank >= ranks.size) {
    refuse_mpi({names.rank, names.size}, ": a rank must be less than the number of processes");
  }
  if (read_env(names.local_size)) {
    ranks.local_size = internal::read_number(kMpi, names.local_size, 1, ranks.size);
  }
  if (read_env(names.local_rank)) {
    ranks.local_rank =
        internal::read_number(kMpi, names.local_rank, 0, ranks.local_size.value_or(ranks.size) - 1);
  }
  return ranks;
}

// The ports lie between those that require privileges and those that Linux assigns to outgoing
// connections.
std::string loopback_address(const std::string& job) {
  constexpr uint32_t kFirst = 20000;
  constexpr uint32_t kCount = 12000;
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return Address{"127.0.0.1", static_cast<int>(kFirst + hash % kCount)}.to_string();
}

}  // namespace

RankEnvironment MpiClusterResolver::ranks() const {
  const bool open_mpi = has_mpi(kOpenMpi);
  const bool pmi = has_mpi(kPmi);
  if (!open_mpi && !pmi) {
    refuse_mpi({"PMIX_RANK", kOpenMpi.rank, kOpenMpi.size, kPmi.rank, kPmi.size},
               ", so the number of processes is unknown");
  }
  const RankEnvironment ranks = read_mpi(open_mpi ? kOpenMpi : kPmi);
  if (open_mpi && pmi) {
    const RankEnvironment other = read_mpi(kPmi);
    if (other.rank != ranks.rank || other.size != ranks.size) {
      refuse_mpi({kOpenMpi.rank, kOpenMpi.size, kPmi.rank, kPmi.size}, ", but the two disagree");
    }
  }
  if (read_env("PMIX_RANK") &&
      internal::read_number(kMpi, "PMIX_RANK", 0, ClusterSpec::kLastIndex) != ranks.rank) {
    refuse_mpi({"PMIX_RANK", open_mpi ? kOpenMpi.rank : kPmi.rank}, ", but the two disagree");
  }
  return ranks;
}

std::string MpiClusterResolver::rendezvous_address() const {
  const RankEnvironment all = ranks();
  if (read_env("TUTTI_RENDEZVOUS")) return internal::rendezvous_variable();
  if (internal::any_is_set({"MASTER_ADDR", "MASTER_PORT"})) {
    return internal::master_variables(
               kMpi, "Set both, or TUTTI_RENDEZVOUS=host:port of rank 0, for all ranks.")
        .to_string();
  }
  if (all.size == 1) return "";
  const bool one_host = all.local_size == all.size;
  if (one_host && !job_id().empty()) return loopback_address(job_id());
  const MpiVariables& names = has_mpi(kOpenMpi) ? kOpenMpi : kPmi;
  internal::refuse_environment(
      kMpi,
      internal::describe_variables({names.rank, names.size, "TUTTI_RENDEZVOUS", "MASTER_ADDR"}) +
          ", so the processes have no address to meet at: the launcher does not provide one",
      "Set TUTTI_RENDEZVOUS to host:port of rank 0, with a free port, the same for all ranks: "
      "mpirun -x TUTTI_RENDEZVOUS=hostA:4321 (OpenMPI), mpiexec -genv TUTTI_RENDEZVOUS hostA:4321 "
      "(MPICH).");
}

std::string MpiClusterResolver::job_id() const {
  if (!has_mpi(kOpenMpi)) return "";
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const auto id = read_env(name)) return "OpenMPI " + *id;
  }
  return "";
}

std::string MpiClusterResolver::source() const { return has_mpi(kOpenMpi) ? "OpenMPI" : "PMI"; }

}  // namespace tutti
