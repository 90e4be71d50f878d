// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/multi_worker_mirrored_strategy.h"

#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include <torch/version.h>

#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/cluster/resolve_cluster.h"
#include "tutti/cluster/task_roles.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/group/join.h"
#include "tutti/group/worker_group.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/version.h"

namespace tutti {
namespace {

constexpr char kMultiWorkerName[] = "MultiWorkerMirroredStrategy";

using WorkerFactory = decltype(StrategyTraits::make_worker);

// Reads a time in seconds from an environment variable; nullopt if it is not set.
std::optional<std::chrono::milliseconds> read_seconds(const char* variable) {
  const std::optional<std::string> text = read_env(variable);
  if (!text) return {};
  int seconds = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  if (error != std::errc() || end != text->data() + text->size() || seconds <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message(kMultiWorkerName, ": ", variable, " is \"", *text,
                        "\"; it must be a whole number of seconds, 1 or more."));
  }
  return std::chrono::seconds(seconds);
}

// Fills unset options from the environment.
MultiWorkerMirroredStrategyOptions with_environment(MultiWorkerMirroredStrategyOptions options) {
  std::optional<std::chrono::milliseconds>& timeout = options.communication_options.timeout;
  if (!timeout) timeout = read_seconds("TUTTI_COMMUNICATION_TIMEOUT");
  if (!options.join_timeout) options.join_timeout = read_seconds("TUTTI_JOIN_TIMEOUT");
  options.security = rpc::with_environment(std::move(options.security));
  return options;
}

std::vector<DeviceSpec> devices_of_worker(const MultiWorkerMirroredStrategyOptions& options) {
  std::vector<std::string> names = options.devices;
  if (names.empty() && list_logical_devices("GPU").empty()) names = {"CPU:0"};
  return internal::logical_device_table().resolve(kMultiWorkerName, names);
}

// The kernels that LibTorch selects, as far as this can be determined.
std::string cpu_capability() {
  if (const auto forced = read_env("ATEN_CPU_CAPABILITY")) return *forced;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return "avx512";
  if (__builtin_cpu_supports("avx2") != 0) return "avx2";
#endif
  return "default";
}

// The facts that determine the bits of a result, or whether workers can communicate.
std::map<std::string, std::string> facts_of(const MultiWorkerMirroredStrategyOptions& options,
                                            size_t replicas, size_t workers) {
  const int threads = options.runner.threads_per_replica;
  return {
      {"version of tutti", TUTTI_VERSION_STRING},
      {"version of LibTorch", TORCH_VERSION},
      {"replicas per worker", std::to_string(replicas)},
      {"threads per replica", threads == 0 ? "automatic" : std::to_string(threads)},
      {"number of workers", std::to_string(workers)},
      {"CPU capability", cpu_capability()},
      {"communication implementation", to_string(options.communication_options.implementation)},
  };
}

constexpr char kPoolInfo[] = "core pool";
constexpr char kCoresInfo[] = "cores";

// The information about cores that the workers exchanged.
std::vector<internal::ProcessCores> cores_of_workers(const internal::JoinedWorkers& joined) {
  std::vector<internal::ProcessCores> workers;
  for (const std::map<std::string, std::string>& info : joined.info) {
    internal::ProcessCores& worker = workers.emplace_back();
    const auto pool = info.find(kPoolInfo);
    const auto cores = info.find(kCoresInfo);
    if (pool != info.end()) worker.pool = pool->second;
    if (cores != info.end()) {
      const std::string& text = cores->second;
      std::from_chars(text.data(), text.data() + text.size(), worker.cores);
    }
  }
  return workers;
}

// " (2 workers share 8 cores)": explains an automatic number of threads.
std::string explain_threads(const std::vector<internal::ProcessCores>& workers, size_t rank,
                            int threads, int replicas) {
  const int sharing = internal::processes_in_pool(workers, rank);
  const int cores = workers[rank].cores;
  const int possible = cores / (sharing * replicas);
  if (threads < possible) {
    return message(" (as many as the worker with the fewest has; this one could use ", possible,
                   ")");
  }
  if (sharing == 1) return "";
  return message(" (", sharing, " workers share ", cores, cores == 1 ? " core)" : " cores)");
}

// The group of all workers, and how many threads each replica gets.
std::shared_ptr<WorkerGroup> join(const ResolvedCluster& cluster, size_t replicas,
                                  const MultiWorkerMirroredStrategyOptions& options,
                                  ReplicaRunnerOptions& runner) {
  const ClusterSpec& spec = cluster.spec;
  const int workers = worker_count(spec, cluster.task_type);
  internal::WorkerRendezvousOptions meeting;
  meeting.rank = id_in_cluster(spec, cluster.task_type, cluster.task_id);
  for (int r = 0; r < workers; ++r) {
    const TaskName task = task_of_rank(spec, r);
    meeting.names.push_back(message("/job:", task.job, "/task:", task.index));
    meeting.addresses.push_back(spec.task_address(task.job, task.index));
  }
  if (meeting.addresses[0].empty()) meeting.addresses[0] = cluster.rendezvous_address;
  meeting.own_address = meeting.addresses[static_cast<size_t>(meeting.rank)];
  meeting.job = cluster.job_id.empty() ? "tutti" : cluster.job_id;
  meeting.facts = facts_of(options, replicas, static_cast<size_t>(workers));
  meeting.info = {{kPoolInfo, core_pool()}, {kCoresInfo, std::to_string(usable_cores())}};
  meeting.security = options.security;
  meeting.implementation = options.communication_options.implementation;
  meeting.local_replicas = static_cast<int>(replicas);
  meeting.join_timeout = options.join_timeout.value_or(meeting.join_timeout);
  meeting.timeout = options.communication_options.timeout.value_or(meeting.timeout);
  meeting.warning = options.runner.meeting_warning;
  const internal::JoinedWorkers joined = internal::join_workers(meeting);
  std::string why;
  if (runner.threads_per_replica == 0) {
    const std::vector<internal::ProcessCores> cores = cores_of_workers(joined);
    runner.threads_per_replica = internal::threads_of_each_replica(cores, meeting.local_replicas);
    why = explain_threads(cores, static_cast<size_t>(meeting.rank), runner.threads_per_replica,
                          meeting.local_replicas);
  }
  const int threads = runner.threads_per_replica;
  log(LogLevel::kInfo,
      message("this worker has ", threads, threads == 1 ? " thread" : " threads", " per replica",
              why, " and reaches the other workers by ", joined.group->options().description));
  return joined.group;
}

std::shared_ptr<StrategyExtended> make_extended(const std::shared_ptr<WorkerGroup>& group,
                                                std::vector<DeviceSpec> devices,
                                                const ReplicaRunnerOptions& runner,
                                                const CommunicationOptions& communication_options,
                                                std::shared_ptr<const ClusterResolver> resolver,
                                                WorkerFactory make_worker = nullptr) {
  const bool is_first = group->rank() == 0;
  return std::make_shared<LocalExtended>(
      kMultiWorkerName, std::move(devices), nullptr, runner,
      StrategyTraits{.cluster_resolver = std::move(resolver),
                     .workers = group,
                     .make_worker = std::move(make_worker),
                     .why_one_process = "it is already configured",
                     .communication_options = communication_options,
                     .between_graph = !group->is_alone(),
                     .should_checkpoint = is_first,
                     .should_save_summary = is_first,
                     .in_multi_worker_mode = !group->is_alone()});
}

// Over workers that are connected already. A rendezvous has compared what must be equal; here only
// the number of replicas is known.
std::shared_ptr<StrategyExtended> make_connected(
    const MultiWorkerMirroredStrategyOptions& options) {
  std::vector<DeviceSpec> devices = devices_of_worker(options);
  const auto mine = static_cast<int64_t>(devices.size());
  const std::vector<int64_t> all = options.workers->concatenate(
      std::vector<int64_t>{mine}, [] { return std::string("replicas of each worker"); });
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == mine) continue;
    throw Error(ErrorCode::kInvalidArgument,
                message(kMultiWorkerName, ": ", options.workers->name(static_cast<int>(r)), " has ",
                        all[r], " replicas, but ", options.workers->name(options.workers->rank()),
                        " has ", mine, ". Give every worker as many devices."));
  }
  return make_extended(options.workers, std::move(devices), options.runner,
                       options.communication_options, nullptr);
}

std::shared_ptr<StrategyExtended> make_multi_worker(
    std::shared_ptr<ClusterResolver> given,
    const MultiWorkerMirroredStrategyOptions& given_options) {
  if (given_options.workers != nullptr) {
    if (given != nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(kMultiWorkerName,
                          ": a cluster resolver and options.workers exclude each "
                          "other: workers that are connected already need no cluster. Give one."));
    }
    return make_connected(given_options);
  }
  const MultiWorkerMirroredStrategyOptions options = with_environment(given_options);
  options.communication_options.validate();
  const ResolvedCluster cluster = resolve_cluster_once(std::move(given));
  const std::optional<std::string>& type = cluster.task_type;
  const ClusterSpec& spec = cluster.spec;
  std::vector<DeviceSpec> devices = devices_of_worker(options);
  if (!spec.empty() && (!type || !cluster.task_id)) {
    throw Error(ErrorCode::kInvalidArgument,
                message(kMultiWorkerName, ": the cluster ", spec,
                        " does not say which task this process is; set the task type and id."));
  }
  log(LogLevel::kInfo, cluster_banner(cluster, static_cast<int>(devices.size())));
  // An evaluator and a lone worker do not wait for other workers.
  const bool alone = spec.empty() || *type == "evaluator" || worker_count(spec, type) == 1;
  ReplicaRunnerOptions runner = options.runner;
  const std::shared_ptr<WorkerGroup> group =
      alone ? WorkerGroup::alone() : join(cluster, devices.size(), options, runner);
  // Outside of a cluster it may still join one.
  WorkerFactory make_worker;
  if (spec.empty()) {
    make_worker = [given_options](std::shared_ptr<ClusterResolver> found) {
      return make_multi_worker(std::move(found), given_options);
    };
  }
  return make_extended(group, std::move(devices), runner, options.communication_options,
                       cluster.resolver, std::move(make_worker));
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    std::shared_ptr<ClusterResolver> cluster_resolver,
    const MultiWorkerMirroredStrategyOptions& options)
    : Strategy(make_multi_worker(std::move(cluster_resolver), options)) {}

}  // namespace tutti
