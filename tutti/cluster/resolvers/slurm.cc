// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/slurm.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <limits>

#include "tutti/base/address.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/hostlist.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

constexpr const char* kSlurm = "Slurm environment";
constexpr int kLastPort = 65535;

void check_option(bool valid, const char* name, int value, const char* wanted) {
  if (valid) return;
  throw Error(ErrorCode::kInvalidArgument,
              message("SlurmClusterResolver: ", name, " = ", value, ". It must be ", wanted, "."));
}

// The number of devices in "0,1" or "GPU-8f2c,GPU-91aa". As CUDA does, ends at the first entry that
// is not a device: "-1", or Slurm's "NoDevFiles"; an empty list is no devices.
std::optional<int> count_visible_devices() {
  if (!has_env("CUDA_VISIBLE_DEVICES")) return std::nullopt;
  const std::string text = read_env("CUDA_VISIBLE_DEVICES").value_or("");
  int count = 0;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view device(text.data() + begin, end - begin);
    while (!device.empty() && device.front() == ' ') device.remove_prefix(1);
    const bool is_device =
        !device.empty() && (std::isdigit(static_cast<unsigned char>(device[0])) ||
                            device.starts_with("GPU-") || device.starts_with("MIG-"));
    if (!is_device) break;
    ++count;
    begin = end + 1;
  }
  return count;
}

// The number of GPUs in SLURM_GPUS_PER_TASK, which is set: "2", "a100:2" or "a100:1,v100:1".
int read_gpus_per_task() {
  const std::string text = *read_env("SLURM_GPUS_PER_TASK");
  const auto refuse = [&] {
    throw Error(ErrorCode::kInvalidArgument,
                message(kSlurm, ": SLURM_GPUS_PER_TASK=", in_quotes(text),
                        " is not a number of GPUs, such as 2 or a100:2. Start the program with "
                        "srun, and do not change its variables."));
  };
  int64_t sum = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part(text.data() + begin, end - begin);
    const std::string_view digits = part.substr(part.rfind(':') + 1);
    int count = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc() || rest != digits.data() + digits.size() || count < 0) refuse();
    sum += count;
    begin = end + 1;
  }
  if (sum > ClusterSpec::kLastIndex) refuse();
  return static_cast<int>(sum);
}

// Ranks per node and turn: with "cyclic", nodes take turns by one task, with "plane" by several;
// with "block", a node gets all of its tasks in one turn.
int tasks_per_turn() {
  const std::string text = read_env("SLURM_DISTRIBUTION").value_or("block");
  const std::string nodes = text.substr(0, text.find_first_of(":,"));
  if (nodes == "block" || nodes == "*") return std::numeric_limits<int>::max();
  if (nodes == "cyclic") return 1;
  if (nodes == "plane" && read_env("SLURM_DIST_PLANESIZE")) {
    return internal::read_number(kSlurm, "SLURM_DIST_PLANESIZE", 1, ClusterSpec::kLastIndex);
  }
  internal::refuse_environment(
      kSlurm,
      internal::describe_variables({"SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE"}) +
          ", so the nodes of the tasks are unknown",
      "Start the program with srun -m block, -m cyclic or -m plane=<size>.");
}

}  // namespace

// The job step of this process.
struct SlurmClusterResolver::Step {
  struct Task {
    size_t node = 0;
    int index = 0;  ///< Among the tasks of the node.
  };

  int rank = 0;
  int most_per_node = 0;
  std::vector<std::string> hosts;
  std::vector<Task> tasks;  ///< By rank.
};

SlurmClusterResolver::SlurmClusterResolver(SlurmClusterResolverOptions options)
    : options_(std::move(options)) {
  const int port = options_.port_base;
  check_option(port >= 1 && port <= kLastPort, "port_base", port, "from 1 to 65535");
  for (const auto& [name, count] : options_.jobs) {
    check_option(count >= 0, message("jobs[", in_quotes(name), "]").c_str(), count, "0 or more");
  }
  check_option(options_.gpus_per_node.value_or(0) >= 0, "gpus_per_node",
               options_.gpus_per_node.value_or(0), "0 or more");
  check_option(options_.gpus_per_task.value_or(0) >= 0, "gpus_per_task",
               options_.gpus_per_task.value_or(0), "0 or more");
  if (const int* const count = std::get_if<int>(&options_.tasks_per_node)) {
    check_option(*count >= 1, "tasks_per_node", *count, "1 or more");
  }
  if (const auto* counts = std::get_if<std::map<std::string, int>>(&options_.tasks_per_node)) {
    for (const auto& [host, count] : *counts) {
      check_option(count >= 0, message("tasks_per_node[", in_quotes(host), "]").c_str(), count,
                   "0 or more");
    }
  }
}

namespace {

// How many tasks each of the hosts has.
std::vector<int> tasks_of_hosts(const SlurmClusterResolverOptions& options,
                                const std::vector<std::string>& hosts) {
  if (const int* const count = std::get_if<int>(&options.tasks_per_node)) {
    return std::vector<int>(hosts.size(), *count);
  }
  if (const auto* counts = std::get_if<std::map<std::string, int>>(&options.tasks_per_node)) {
    std::vector<int> out;
    for (const std::string& host : hosts) {
      const auto found = counts->find(host);
      if (found == counts->end()) {
        throw Error(
            ErrorCode::kInvalidArgument,
            message("SlurmClusterResolver: tasks_per_node has no number for host ", in_quotes(host),
                    " of SLURM_STEP_NODELIST=", in_quotes(*read_env("SLURM_STEP_NODELIST")),
                    ". Add it, or leave tasks_per_node out."));
      }
      out.push_back(found->second);
    }
    return out;
  }
  std::vector<int> out = internal::expand_tasks_per_node(
      message(kSlurm, ": SLURM_STEP_TASKS_PER_NODE"), *read_env("SLURM_STEP_TASKS_PER_NODE"));
  if (out.size() != hosts.size()) {
    internal::refuse_environment(
        kSlurm,
        message(internal::describe_variables({"SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}),
                ", which are ", hosts.size(), " and ", out.size(), " nodes"),
        "Start the program with srun, and do not change its variables.");
  }
  return out;
}

}  // namespace

SlurmClusterResolver::Step SlurmClusterResolver::read_step() const {
  const std::vector<const char*> names = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
                                          "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"};
  for (const char* name : names) {
    if (read_env(name)) continue;
    internal::refuse_environment(
        kSlurm,
        internal::describe_variables(names) + ", so this process is not a task of a job step",
        "Start the program with srun, also inside of sbatch and salloc, or give the cluster in the "
        "program.");
  }
  Step step;
  const int size =
      internal::read_number(kSlurm, "SLURM_STEP_NUM_TASKS", 1, ClusterSpec::kLastIndex);
  step.rank = internal::read_number(kSlurm, "SLURM_PROCID", 0, size - 1);
  step.hosts = internal::expand_hostlist(message(kSlurm, ": SLURM_STEP_NODELIST"),
                                         *read_env("SLURM_STEP_NODELIST"));
  std::vector<int> left = tasks_of_hosts(options_, step.hosts);
  int64_t sum = 0;
  for (const int count : left) sum += count;
  if (sum != size) {
    const bool given = !std::holds_alternative<std::monostate>(options_.tasks_per_node);
    internal::refuse_environment(
        kSlurm,
        message(internal::describe_variables(
                    {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}),
                ", but ", given ? "the option tasks_per_node" : "the nodes", " would have ", sum,
                " tasks in all"),
        given ? "Correct the option, or leave it out."
              : "Start the program with srun, and do not change its variables.");
  }
  step.most_per_node = *std::max_element(left.begin(), left.end());
  const std::vector<int> all = left;
  const int turn = tasks_per_turn();
  while (step.tasks.size() < static_cast<size_t>(size)) {
    for (size_t node = 0; node < left.size(); ++node) {
      for (int i = std::min(turn, left[node]); i > 0; --i, --left[node]) {
        step.tasks.push_back({node, all[node] - left[node]});
      }
    }
  }
  return step;
}

ClusterSpec SlurmClusterResolver::cluster_spec() const {
  const Step step = read_step();
  if (options_.port_base + step.most_per_node - 1 > kLastPort) {
    throw Error(ErrorCode::kInvalidArgument,
                message("SlurmClusterResolver: port_base = ", options_.port_base, " with ",
                        step.most_per_node,
                        " tasks on one node: there are no ports above 65535. Choose a lower one."));
  }
  const Step::Task& mine = step.tasks[static_cast<size_t>(step.rank)];
  const auto contradicts = [](const char* name, int expected) {
    return read_env(name) &&
           internal::read_number(kSlurm, name, 0, ClusterSpec::kLastIndex) != expected;
  };
  if (contradicts("SLURM_NODEID", static_cast<int>(mine.node)) ||
      contradicts("SLURM_LOCALID", mine.index)) {
    internal::refuse_environment(
        kSlurm,
        message(internal::describe_variables({"SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID",
                                              "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}),
                ", but by these rank ", step.rank, " would be task ", mine.index, " of node ",
                mine.node),
        "Start the program with srun -m block, -m cyclic or -m plane=<size>.");
  }
  ClusterSpec::Jobs jobs;
  for (int rank = 0; rank < static_cast<int>(step.tasks.size()); ++rank) {
    const Step::Task& task = step.tasks[static_cast<size_t>(rank)];
    const TaskName name = task_of(step, rank);
    jobs[name.job][name.index] =
        Address{step.hosts[task.node], options_.port_base + task.index}.to_string();
  }
  return ClusterSpec::sparse(std::move(jobs));
}

TaskName SlurmClusterResolver::task_of(const Step& step, int rank) const {
  if (options_.jobs.empty()) return {"worker", rank};
  int64_t requested = 0;
  for (const auto& [job, count] : options_.jobs) requested += count;
  if (requested != static_cast<int64_t>(step.tasks.size())) {
    internal::refuse_environment(
        "SlurmClusterResolver",
        message("the option jobs has ", requested, " tasks, but the job step has ",
                step.tasks.size(), " (SLURM_STEP_NUM_TASKS)"),
        "Make them equal: srun -n, or the option.");
  }
  int first = 0;
  for (const auto& [job, count] : options_.jobs) {
    if (rank < first + count) return {job, rank - first};
    first += count;
  }
  TUTTI_CHECK(rank < first);
  return {};
}

TaskName SlurmClusterResolver::get_task_info() const {
  const Step step = read_step();
  return task_of(step, step.rank);
}

int SlurmClusterResolver::count_gpus_per_task(const Step& step) const {
  const bool bound = read_env("SLURM_GPUS_PER_TASK") && !options_.gpus_per_node;
  int on_node = 0;
  if (options_.gpus_per_node) {
    on_node = *options_.gpus_per_node;
  } else if (const auto visible = count_visible_devices()) {
    on_node = *visible;
  } else if (bound) {
    on_node = read_gpus_per_task();  // There are no variables of CUDA with other makes of GPUs.
  } else if (read_env("SLURM_GPUS_ON_NODE")) {
    on_node = internal::read_number(kSlurm, "SLURM_GPUS_ON_NODE", 0, ClusterSpec::kLastIndex);
  }
  // With --gpus-per-task, Slurm has divided them, and a task sees only its own.
  const int sharing = bound ? 1 : step.most_per_node;
  const int per_task = options_.gpus_per_task.value_or(on_node / sharing);
  if (int64_t{per_task} * sharing > on_node) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("SlurmClusterResolver: ", sharing, sharing == 1 ? " task" : " tasks",
                        " with ", per_task, " GPUs each need more than the ", on_node,
                        " GPUs that ", bound ? "a task" : "a node",
                        " has. Request more (srun --gpus-per-node), or set gpus_per_node or "
                        "gpus_per_task."));
  }
  return per_task;
}

std::map<std::string, int> SlurmClusterResolver::num_accelerators(const std::optional<std::string>&,
                                                                  std::optional<int>) const {
  const int count = count_gpus_per_task(read_step());
  if (count == 0) return {};
  return {{"GPU", count}};
}

std::vector<int> SlurmClusterResolver::gpus() const {
  const Step step = read_step();
  const int count = count_gpus_per_task(step);
  const bool bound = read_env("SLURM_GPUS_PER_TASK") && !options_.gpus_per_node;
  const int first = bound ? 0 : step.tasks[static_cast<size_t>(step.rank)].index * count;
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(first + i);
  return out;
}

int SlurmClusterResolver::rank() const { return read_step().rank; }

int SlurmClusterResolver::num_tasks() const { return static_cast<int>(read_step().tasks.size()); }

std::string SlurmClusterResolver::job_id() const {
  const auto job = read_env("SLURM_JOB_ID");
  const auto step = read_env("SLURM_STEP_ID");
  if (!job || !step) return "";
  return message("Slurm ", *job, '.', *step, " restart ",
                 read_env("SLURM_RESTART_COUNT").value_or("0"));
}

}  // namespace tutti
