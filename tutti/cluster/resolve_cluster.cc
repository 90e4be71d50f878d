// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolve_cluster.h"

#include <optional>
#include <utility>
#include <vector>

#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/cluster/internal/cluster_json.h"
#include "tutti/cluster/internal/variables.h"
#include "tutti/cluster/resolvers/mpi.h"
#include "tutti/cluster/resolvers/pod_index.h"
#include "tutti/cluster/resolvers/sagemaker.h"
#include "tutti/cluster/resolvers/slurm.h"
#include "tutti/cluster/resolvers/tf_config.h"
#include "tutti/cluster/resolvers/torchrun.h"
#include "tutti/cluster/task_roles.h"

namespace tutti {
namespace {

constexpr const char* kResolve = "resolve_cluster";

// The fallback when the environment names no cluster.
class LocalClusterResolver : public ClusterResolver {
 public:
  ClusterSpec cluster_spec() const override { return {}; }
  std::string source() const override { return "an environment that names no cluster"; }
  bool is_explicit() const override { return false; }
};

// One description of a cluster in the environment, and what it says about this process.
struct ClusterCandidate {
  std::shared_ptr<ClusterResolver> resolver;
  std::string text;  ///< "TF_CONFIG says worker 1 of 4"
  int rank = 0;      ///< -1 if this process is not a worker.
  int size = 0;
};

// TF_CONFIG must name both the whole cluster and this task, or neither.
bool tf_config_names_a_cluster(const internal::TfConfig& config) {
  const bool has_task = config.task_type || config.task_id;
  if (!config.has_anything) return false;
  if (!config.has_cluster) {
    internal::refuse_environment(
        kResolve, message("TF_CONFIG=", in_quotes(*read_env("TF_CONFIG")), " has no \"cluster\""),
        message("Add it or unset TF_CONFIG. Example: ", internal::kTfConfigExample));
  }
  if (config.cluster.empty()) {
    if (!has_task) return false;
    internal::refuse_environment(
        kResolve,
        message("TF_CONFIG says that this process is ", config.task_type.value_or("a task"),
                config.task_id ? message(' ', *config.task_id) : "",
                ", but its cluster has no tasks: ", config.cluster),
        "Fill in the cluster, or unset TF_CONFIG to run alone.");
  }
  if (!config.task_type || !config.task_id) {
    const char* missing = has_task ? (config.task_type ? "\"index\"" : "\"type\"") : "\"task\"";
    internal::refuse_environment(
        kResolve,
        message("TF_CONFIG names a cluster but not this process's task in it: ", missing,
                " is missing",
                config.task_type ? message(" for type ", in_quotes(*config.task_type)) : "",
                config.task_id ? message(" for index ", *config.task_id) : "", "; the cluster is ",
                config.cluster),
        message("Add it. Example: ", internal::kTfConfigExample));
  }
  return true;
}

std::optional<ClusterCandidate> tf_config_candidate() {
  const auto text = read_env("TF_CONFIG");
  if (!text) return std::nullopt;
  const internal::TfConfig config = internal::parse_tf_config(*text);
  if (!tf_config_names_a_cluster(config)) return std::nullopt;
  const std::string& type = *config.task_type;
  try {
    validate_cluster_task(config.cluster, type, config.task_id);
  } catch (const Error& error) {
    throw Error(error.code(), message("TF_CONFIG: ", error.what()));
  }
  const bool works = type == "chief" || type == "worker";
  ClusterCandidate candidate{std::make_shared<TFConfigClusterResolver>(), "",
                             works ? id_in_cluster(config.cluster, type, config.task_id) : -1,
                             worker_count(config.cluster)};
  candidate.text = message("TF_CONFIG says ", type, ' ', *config.task_id, " of a cluster with ",
                           candidate.size, " workers");
  if (works) candidate.text += message(", so rank ", candidate.rank);
  return candidate;
}

ClusterCandidate rank_candidate(std::shared_ptr<RankClusterResolver> resolver,
                                const char* variables) {
  const RankEnvironment ranks = resolver->ranks();
  std::string text = message(variables, " say rank ", ranks.rank, " of ", ranks.size);
  return {std::move(resolver), std::move(text), ranks.rank, ranks.size};
}

bool has_mpi_variables() {
  return internal::any_is_set(
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"});
}

// MPI jobs use torchrun's MASTER_ADDR, and often LOCAL_RANK, without its other variables.
bool has_torchrun_variables() {
  if (internal::any_is_set({"RANK", "WORLD_SIZE"})) return true;
  return !has_mpi_variables() && internal::any_is_set({"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK",
                                                       "LOCAL_WORLD_SIZE", "PET_RDZV_ENDPOINT"});
}

// A batch script has SLURM_PROCID, too, but is not a task of a step. A step that is described in
// part only must not run alone: the resolver says what is missing.
bool has_slurm_variables() {
  return (read_env("SLURM_STEP_ID") && read_env("SLURM_PROCID")) ||
         internal::any_is_set(
             {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"});
}

bool has_sagemaker_variables() { return internal::any_is_set({"SM_HOSTS", "SM_CURRENT_HOST"}); }

bool has_pod_variables() {
  return internal::any_is_set({"JOB_COMPLETION_INDEX", "TUTTI_POD_COUNT", "TUTTI_POD_SERVICE"});
}

// True if the variables of MPI are those of srun --mpi=pmi2, and nobody has given an address for
// the rendezvous: Slurm then knows the addresses that MPI lacks.
bool slurm_speaks_for_mpi(const std::vector<ClusterCandidate>& found) {
  if (found.size() != 1 || found[0].resolver->source() != "PMI") return false;
  if (internal::any_is_set({"TUTTI_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT"})) return false;
  const SlurmClusterResolver slurm;
  return slurm.rank() == found[0].rank && slurm.num_tasks() == found[0].size;
}

// What the platform says about its processes. It is asked after the launchers: a launcher that runs
// as one process of each host starts others, which inherit the variables of the platform.
std::shared_ptr<ClusterResolver> find_platform(const std::vector<ClusterCandidate>& launchers) {
  if (has_slurm_variables() && (launchers.empty() || slurm_speaks_for_mpi(launchers))) {
    return std::make_shared<SlurmClusterResolver>();
  }
  if (!launchers.empty()) return nullptr;
  if (has_sagemaker_variables()) return std::make_shared<SageMakerClusterResolver>();
  if (has_pod_variables()) return std::make_shared<PodIndexClusterResolver>();
  return nullptr;
}

// Returns them in order of preference: TF_CONFIG knows all addresses.
std::vector<ClusterCandidate> find_candidates() {
  std::vector<ClusterCandidate> found;
  if (auto candidate = tf_config_candidate()) found.push_back(std::move(*candidate));
  if (has_torchrun_variables()) {
    found.push_back(
        rank_candidate(std::make_shared<TorchrunClusterResolver>(), "RANK and WORLD_SIZE"));
  }
  if (has_mpi_variables()) {
    const bool open_mpi = internal::any_is_set({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"});
    found.push_back(rank_candidate(
        std::make_shared<MpiClusterResolver>(),
        open_mpi ? "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE" : "PMI_RANK and PMI_SIZE"));
  }
  return found;
}

// Asks for everything but the resolver itself.
ResolvedCluster ask(const ClusterResolver& resolver) {
  ResolvedCluster out;
  out.spec = resolver.cluster_spec();
  out.task_type = resolver.task_type();
  out.task_id = resolver.task_id();
  out.job_id = resolver.job_id();
  // Resolvers that do not override rendezvous_address() would resolve the cluster again.
  if (const auto leader = coordination_leader_task(out.spec)) {
    out.rendezvous_address = out.spec.task_address(leader->job, leader->index);
    if (out.rendezvous_address.empty()) out.rendezvous_address = resolver.rendezvous_address();
  }
  return out;
}

ResolvedCluster ask_and_check(std::shared_ptr<ClusterResolver> resolver) {
  ResolvedCluster out = ask(*resolver);
  validate_cluster_task(out.spec, out.task_type, out.task_id);
  out.resolver = std::move(resolver);
  return out;
}

void check_rendezvous_variable(const ResolvedCluster& cluster) {
  if (!read_env("TUTTI_RENDEZVOUS")) return;
  const std::string given = internal::rendezvous_variable();
  if (cluster.spec.empty()) {
    internal::refuse_environment(
        kResolve,
        message("TUTTI_RENDEZVOUS=", in_quotes(given),
                " is set, but this process's rank and the number of processes are unknown"),
        "Start the program with mpirun or torchrun, set TF_CONFIG instead, or unset "
        "TUTTI_RENDEZVOUS.");
  }
  if (cluster.rendezvous_address != given) {
    internal::refuse_environment(
        kResolve,
        message("TUTTI_RENDEZVOUS=", in_quotes(given), ", but the cluster from ",
                cluster.resolver->source(), " meets at ", cluster.rendezvous_address),
        "Unset TUTTI_RENDEZVOUS, or make the two equal.");
  }
}

std::string count_of(int count, const char* what) {
  return message(count, ' ', what, count == 1 ? "" : "s");
}

// "I am worker 1 (hostB:4321)"
std::string own_place(const ResolvedCluster& cluster) {
  const std::optional<std::string>& type = cluster.task_type;
  const std::optional<int>& id = cluster.task_id;
  if (!type || !id) return "I am not one of its tasks";
  std::string place = message("I am ", *type, ' ', *id);
  if (!cluster.spec.has_task(*type, *id)) return place;  // an evaluator
  const std::string& address = cluster.spec.task_address(*type, *id);
  if (!address.empty()) {
    place += message(" (", address, ')');
  } else if (!cluster.rendezvous_address.empty()) {
    place += message(" (meeting at ", cluster.rendezvous_address, ')');
  }
  return place;
}

std::string ignored_variables() {
  std::vector<std::string> names;
  if (read_env("TF_CONFIG")) names.emplace_back("TF_CONFIG");
  if (has_torchrun_variables()) names.emplace_back("the torchrun environment");
  if (has_mpi_variables()) names.emplace_back("the MPI environment");
  if (has_slurm_variables()) names.emplace_back("the Slurm step");
  if (has_sagemaker_variables()) names.emplace_back("the SageMaker environment");
  if (has_pod_variables()) names.emplace_back("the number of this pod");
  if (names.empty()) return "";
  return message("; ", joined_with_and(names), names.size() == 1 ? " is" : " are", " ignored");
}

std::string banner_of(const ClusterResolver& resolver, const ResolvedCluster& cluster,
                      int replicas_per_worker) {
  const ClusterSpec& spec = cluster.spec;
  const std::string replicas = count_of(replicas_per_worker, "replica");
  const std::string ignored = resolver.is_explicit() ? ignored_variables() : "";
  if (spec.empty()) {
    return message("1 worker x ", replicas, ", I am alone, ", "from ", resolver.source(), ignored);
  }
  std::string line = message(count_of(worker_count(spec), "worker"), " x ", replicas);
  if (spec.has_job("ps") && spec.num_tasks("ps") > 0)
    line += message(" + ", spec.num_tasks("ps"), " ps");
  return message(line, ", ", own_place(cluster), ", from ", resolver.source(), ignored);
}

}  // namespace

ResolvedCluster resolve_cluster_once(std::shared_ptr<ClusterResolver> explicit_cluster) {
  if (explicit_cluster != nullptr) return ask_and_check(std::move(explicit_cluster));
  const std::vector<ClusterCandidate> found = find_candidates();
  for (size_t i = 1; i < found.size(); ++i) {
    if (found[i].rank == found[0].rank && found[i].size == found[0].size) continue;
    internal::refuse_environment(
        kResolve, message(found[0].text, ", but ", found[i].text),
        "Unset one of them, make them agree, or give the cluster in the program.");
  }
  std::shared_ptr<ClusterResolver> chosen = find_platform(found);
  if (chosen == nullptr && !found.empty()) chosen = found[0].resolver;
  if (chosen == nullptr) chosen = std::make_shared<LocalClusterResolver>();
  ResolvedCluster cluster = ask_and_check(std::move(chosen));
  check_rendezvous_variable(cluster);
  return cluster;
}

std::shared_ptr<ClusterResolver> resolve_cluster(
    std::shared_ptr<ClusterResolver> explicit_cluster) {
  return resolve_cluster_once(std::move(explicit_cluster)).resolver;
}

std::string cluster_banner(const ClusterResolver& cluster, int replicas_per_worker) {
  return banner_of(cluster, ask(cluster), replicas_per_worker);
}

std::string cluster_banner(const ResolvedCluster& cluster, int replicas_per_worker) {
  return banner_of(*cluster.resolver, cluster, replicas_per_worker);
}

}  // namespace tutti
