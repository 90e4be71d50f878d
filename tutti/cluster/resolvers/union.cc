// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/union.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti {
namespace {

using TaskAddresses = std::map<int, std::string>;

bool indices_are_dense(const TaskAddresses& tasks) {
  return tasks.empty() || tasks.rbegin()->first == static_cast<int>(tasks.size()) - 1;
}

TaskAddresses merge_tasks(const std::string& job, const std::vector<TaskAddresses>& parts) {
  const bool dense = std::all_of(parts.begin(), parts.end(), indices_are_dense);
  TaskAddresses merged;
  for (const TaskAddresses& part : parts) {
    for (const auto& [index, address] : part) {
      const int place = dense ? static_cast<int>(merged.size()) : index;
      if (merged.emplace(place, address).second) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  message("UnionResolver: two resolvers have a task ", index, " of job ",
                          in_quotes(job), ": ", merged[place], " and ", address,
                          ". In a sparse job every index may appear only once."));
    }
  }
  return merged;
}

}  // namespace

UnionResolver::UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                             UnionResolverOptions options)
    : resolvers_(std::move(resolvers)), options_(std::move(options)) {
  if (resolvers_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "UnionResolver: no resolvers were given. Give at least one.");
  }
  if (std::count(resolvers_.begin(), resolvers_.end(), nullptr) != 0) {
    throw Error(ErrorCode::kInvalidArgument, "UnionResolver: one of the resolvers is null.");
  }
}

ClusterSpec UnionResolver::cluster_spec() const {
  std::map<std::string, std::vector<TaskAddresses>> parts;
  for (const auto& resolver : resolvers_) {
    const ClusterSpec spec = resolver->cluster_spec();
    for (const auto& [job, tasks] : spec.as_map()) parts[job].push_back(tasks);
  }
  ClusterSpec::Jobs jobs;
  for (const auto& [job, of_job] : parts) jobs[job] = merge_tasks(job, of_job);
  return ClusterSpec::sparse(std::move(jobs));
}

std::string UnionResolver::master(const std::optional<std::string>& task_type,
                                  std::optional<int> task_id,
                                  const std::optional<std::string>& rpc_layer) const {
  if (task_type && task_id) {
    return master_url(cluster_spec().task_address(*task_type, *task_id), rpc_layer);
  }
  return resolvers_.front()->master(task_type, task_id, rpc_layer ? rpc_layer : this->rpc_layer());
}

std::map<std::string, int> UnionResolver::num_accelerators(
    const std::optional<std::string>& task_type, std::optional<int> task_id) const {
  return resolvers_.front()->num_accelerators(task_type, task_id);
}

std::string UnionResolver::environment() const { return resolvers_.front()->environment(); }

std::string UnionResolver::job_id() const { return resolvers_.front()->job_id(); }

std::string UnionResolver::source() const {
  std::vector<std::string> sources;
  for (const auto& resolver : resolvers_) {
    const std::string source = resolver->source();
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) {
      sources.push_back(source);
    }
  }
  return joined_with_and(sources);
}

std::optional<std::string> UnionResolver::own_task_type() const {
  return options_.task_type ? options_.task_type : resolvers_.front()->task_type();
}

std::optional<int> UnionResolver::own_task_id() const {
  return options_.task_id ? options_.task_id : resolvers_.front()->task_id();
}

std::string UnionResolver::own_rpc_layer() const {
  return options_.rpc_layer ? *options_.rpc_layer : resolvers_.front()->rpc_layer();
}

}  // namespace tutti
