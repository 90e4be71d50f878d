// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/task_roles.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

constexpr std::array<const char*, 4> kTaskTypes = {"chief", "worker", "ps", "evaluator"};

[[noreturn]] void refuse_cluster(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, message("cluster: ", what));
}

bool is_task_type(const std::string& name) {
  return std::find(kTaskTypes.begin(), kTaskTypes.end(), name) != kTaskTypes.end();
}

int count_tasks(const ClusterSpec& spec, const std::string& job) {
  return spec.has_job(job) ? spec.num_tasks(job) : 0;
}

void check_jobs(const ClusterSpec& spec) {
  for (const auto& [job, tasks] : spec.as_map()) {
    if (!is_task_type(job)) {
      refuse_cluster(message("job ", in_quotes(job),
                             " is unknown; the jobs are chief, worker, ps and evaluator."));
    }
  }
  for (const char* job : {"chief", "evaluator"}) {
    const int count = count_tasks(spec, job);
    if (count > 1) {
      refuse_cluster(message("job ", job, " has ", count, " tasks. It may have only one."));
    }
  }
}

void check_task_addresses(const ClusterSpec& spec) {
  std::map<std::string, TaskName> seen;
  for (const auto& [job, tasks] : spec.as_map()) {
    for (const auto& [index, address] : tasks) {
      if (address.empty()) continue;
      try {
        parse_address(address);
      } catch (const Error& error) {
        refuse_cluster(message(job, ' ', index, ": ", error.what()));
      }
      const auto [there, is_new] = seen.emplace(address, TaskName{job, index});
      if (!is_new) {
        refuse_cluster(message(there->second.job, ' ', there->second.index, " and ", job, ' ',
                               index, " have the same address ", address,
                               ". Every task needs its own port."));
      }
    }
  }
}

// The index of the first task of a job that has one.
int first_index(const ClusterSpec& spec, const std::string& job) {
  return spec.as_map().at(job).begin()->first;
}

std::optional<TaskName> first_task(const ClusterSpec& spec,
                                   std::initializer_list<const char*> jobs) {
  for (const char* job : jobs) {
    if (count_tasks(spec, job) > 0) return TaskName{job, first_index(spec, job)};
  }
  return std::nullopt;
}

int position_in_job(const ClusterSpec& spec, const std::string& job, int index) {
  const auto& tasks = spec.as_map().at(job);
  return static_cast<int>(std::distance(tasks.begin(), tasks.find(index)));
}

void refuse_ps(const std::optional<std::string>& task_type, const char* what) {
  if (task_type == "ps") {
    refuse_cluster(message("a ps has no ", what, ": it does not run in lock step with others."));
  }
}

// Only a program that runs alone has a role without a task type.
void check_role(const ClusterSpec& spec, const std::optional<std::string>& type,
                std::optional<int> id) {
  validate_cluster_task(spec, type, id);
  if (!type && !spec.empty()) {
    refuse_cluster(message("this process's task type and index are not given, but the cluster is ",
                           spec, ". Give both, for example \"worker\" and 0."));
  }
}

}  // namespace

std::string TaskName::to_string() const { return message("/job:", job, "/replica:0/task:", index); }

void validate_cluster_task(const ClusterSpec& spec, const std::optional<std::string>& task_type,
                           std::optional<int> task_id) {
  check_jobs(spec);
  check_task_addresses(spec);
  if (!task_type && !task_id) return;
  if (!task_type)
    refuse_cluster(message("task index ", *task_id, " is given without a task type."));
  if (!is_task_type(*task_type)) {
    refuse_cluster(message("unrecognized task type ", in_quotes(*task_type),
                           "; it must be chief, worker, ps or evaluator."));
  }
  if (!task_id) refuse_cluster(message("task type ", *task_type, " is given without an index."));
  if (*task_id < 0) refuse_cluster(message("task index ", *task_id, " is negative."));
  if (*task_type == "evaluator" && count_tasks(spec, "evaluator") == 0) return;
  if (spec.has_task(*task_type, *task_id)) return;
  const int count = count_tasks(spec, *task_type);
  refuse_cluster(message("this process is ", *task_type, ' ', *task_id, ", but the cluster has ",
                         count == 0 ? "no" : "only", count == 0 ? "" : message(' ', count), " task",
                         count == 1 ? "" : "s", " of that type: ", spec,
                         ". Correct the cluster or the task."));
}

bool is_chief(const ClusterSpec& spec, const std::optional<std::string>& task_type,
              std::optional<int> task_id) {
  check_role(spec, task_type, task_id);
  if (!task_type || task_type == "evaluator") return true;
  return first_task(spec, {"chief", "worker"}) == TaskName{*task_type, *task_id};
}

int worker_count(const ClusterSpec& spec, const std::optional<std::string>& task_type) {
  validate_cluster_task(spec, std::nullopt, std::nullopt);
  refuse_ps(task_type, "worker count");
  if (task_type && !is_task_type(*task_type)) validate_cluster_task(spec, task_type, 0);
  if (task_type == "evaluator") return std::max(1, count_tasks(spec, "evaluator"));
  if (!task_type && spec.empty()) return 1;
  return count_tasks(spec, "chief") + count_tasks(spec, "worker");
}

int id_in_cluster(const ClusterSpec& spec, const std::optional<std::string>& task_type,
                  std::optional<int> task_id) {
  check_role(spec, task_type, task_id);
  refuse_ps(task_type, "rank");
  if (!task_type) return 0;
  if (count_tasks(spec, *task_type) == 0) return *task_id;  // an evaluator outside of the cluster
  const int position = position_in_job(spec, *task_type, *task_id);
  return *task_type == "worker" ? count_tasks(spec, "chief") + position : position;
}

std::string collective_leader(const ClusterSpec& spec, const std::optional<std::string>& task_type,
                              std::optional<int> task_id) {
  check_role(spec, task_type, task_id);
  if (task_type == "evaluator") return "";
  const auto leader = first_task(spec, {"chief", "worker"});
  return leader ? leader->to_string() : "";
}

std::optional<TaskName> coordination_leader_task(const ClusterSpec& spec) {
  return first_task(spec, {"ps", "chief", "worker"});
}

std::string coordination_leader(const ClusterSpec& spec) {
  const auto leader = coordination_leader_task(spec);
  return leader ? leader->to_string() : "";
}

TaskName task_of_rank(const ClusterSpec& spec, int rank) {
  int left = rank;
  for (const char* job : {"chief", "worker"}) {
    const int count = count_tasks(spec, job);
    if (left >= 0 && left < count) {
      return {job, std::next(spec.as_map().at(job).begin(), left)->first};
    }
    left -= count;
  }
  throw Error(ErrorCode::kNotFound, message("cluster: no worker has rank ", rank, " in ", spec));
}

}  // namespace tutti
