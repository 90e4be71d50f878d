// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/cluster_spec.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/cluster/internal/checked_json.h"
#include "tutti/cluster/internal/cluster_json.h"

namespace tutti {
namespace {

bool is_dense(const std::map<int, std::string>& tasks) {
  return tasks.empty() || tasks.rbegin()->first == static_cast<int>(tasks.size()) - 1;
}

std::map<int, std::string> number_tasks(const std::vector<std::string>& addresses) {
  std::map<int, std::string> tasks;
  int index = 0;
  for (const std::string& address : addresses) tasks.emplace_hint(tasks.end(), index++, address);
  return tasks;
}

}  // namespace

ClusterSpec::ClusterSpec(
    std::initializer_list<std::pair<std::string, std::vector<std::string>>> jobs) {
  Jobs by_index;
  for (const auto& [job, addresses] : jobs) {
    const auto [place, is_new] = by_index.emplace(job, number_tasks(addresses));
    if (!is_new) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("ClusterSpec: job ", in_quotes(job), " appears twice."));
    }
  }
  *this = sparse(std::move(by_index));
}

ClusterSpec::ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs) {
  Jobs by_index;
  for (const auto& [job, addresses] : jobs) by_index[job] = number_tasks(addresses);
  *this = sparse(std::move(by_index));
}

ClusterSpec::ClusterSpec(const ClusterDef& def) {
  Jobs by_index;
  for (const JobDef& job : def.job) {
    if (by_index.emplace(job.name, job.tasks).second) continue;
    throw Error(ErrorCode::kInvalidArgument, message("ClusterSpec: job ", in_quotes(job.name),
                                                     " appears twice in a ClusterDef."));
  }
  *this = sparse(std::move(by_index));
}

ClusterDef ClusterSpec::as_cluster_def() const {
  ClusterDef def;
  for (const auto& [name, tasks] : jobs_) def.job.push_back({name, tasks});
  return def;
}

ClusterSpec ClusterSpec::sparse(Jobs jobs) {
  for (const auto& [job, tasks] : jobs) {
    if (job.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "ClusterSpec: a job has an empty name. Name it, for example \"worker\".");
    }
    for (const int index :
         {tasks.empty() ? 0 : tasks.begin()->first, tasks.empty() ? 0 : tasks.rbegin()->first}) {
      if (index < 0 || index > kLastIndex) {
        throw Error(ErrorCode::kInvalidArgument,
                    message("ClusterSpec: job ", in_quotes(job), " has a task with index ", index,
                            ". Indices range from 0 to ", kLastIndex, "."));
      }
    }
  }
  ClusterSpec spec;
  spec.jobs_ = std::move(jobs);
  return spec;
}

ClusterSpec ClusterSpec::from_json(std::string_view text) {
  return internal::parse_cluster_json(text);
}

std::string ClusterSpec::to_json() const {
  std::string out = "{";
  for (const auto& [job, tasks] : jobs_) {
    const bool dense = is_dense(tasks);
    if (out.size() > 1) out += ", ";
    out += internal::json_text(job) + (dense ? ": [" : ": {");
    bool first = true;
    for (const auto& [index, address] : tasks) {
      if (!std::exchange(first, false)) out += ", ";
      if (!dense) out += message('"', index, "\": ");
      out += internal::json_text(address);
    }
    out += dense ? "]" : "}";
  }
  return out + "}";
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

bool ClusterSpec::has_task(const std::string& job, int index) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.count(index) != 0;
}

const std::map<int, std::string>& ClusterSpec::tasks_of(const std::string& job) const {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  throw Error(ErrorCode::kNotFound,
              message("ClusterSpec: the cluster has no job ", in_quotes(job), ". ",
                      jobs_.empty() ? "The cluster is empty."
                                    : "Its jobs are " + joined_with_and(jobs()) + "."));
}

int ClusterSpec::num_tasks(const std::string& job) const {
  return static_cast<int>(tasks_of(job).size());
}

std::vector<int> ClusterSpec::task_indices(const std::string& job) const {
  std::vector<int> indices;
  for (const auto& [index, address] : tasks_of(job)) indices.push_back(index);
  return indices;
}

const std::string& ClusterSpec::task_address(const std::string& job, int index) const {
  const auto& tasks = tasks_of(job);
  const auto found = tasks.find(index);
  if (found != tasks.end()) return found->second;
  throw Error(ErrorCode::kNotFound,
              message("ClusterSpec: no task with index ", index, " in job ", in_quotes(job),
                      ", which has ", tasks.size(), tasks.size() == 1 ? " task" : " tasks",
                      tasks.empty() ? std::string(".")
                                    : message(", from ", tasks.begin()->first, " to ",
                                              tasks.rbegin()->first, ".")));
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  const auto& tasks = tasks_of(job);
  std::vector<std::optional<std::string>> out;
  if (tasks.empty()) return out;
  out.resize(static_cast<size_t>(tasks.rbegin()->first) + 1);
  for (const auto& [index, address] : tasks) out[static_cast<size_t>(index)] = address;
  return out;
}

bool ClusterSpec::empty() const {
  return std::all_of(jobs_.begin(), jobs_.end(),
                     [](const auto& job) { return job.second.empty(); });
}

std::ostream& operator<<(std::ostream& out, const ClusterSpec& spec) {
  return out << "ClusterSpec(" << spec.to_json() << ')';
}

}  // namespace tutti
