// SPDX-License-Identifier: Apache-2.0
//
// The tasks of a cluster: for each job ("worker", "chief", "ps", ...) the addresses of its tasks by
// index. A ClusterResolver (cluster_resolver.h) finds one.

#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_def.h"

namespace tutti {

/// Jobs, task indices and addresses. A plain value: any number of threads may read one object.
///
/// An address is "host:port" (address.h), or empty until the tasks have met. It is stored as given;
/// validate_cluster_task() (task_roles.h) checks it.
class ClusterSpec {
 public:
  using Jobs = std::map<std::string, std::map<int, std::string>>;

  /// The largest task index; the limit keeps a typo from allocating all memory.
  static constexpr int kLastIndex = 999'999;

  /// A cluster without jobs: that of a program that runs alone.
  ClusterSpec() = default;

  /// Each job with the addresses of its tasks 0, 1, 2, ...; a job may appear only once:
  /// ClusterSpec{{"worker", {"hostA:4321", "hostB:4321"}}, {"ps", {"hostC:4321"}}}.
  ClusterSpec(std::initializer_list<std::pair<std::string, std::vector<std::string>>> jobs);
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);

  /// The jobs of a plain struct. Throws kInvalidArgument if two of them have the same name.
  explicit ClusterSpec(const ClusterDef& def);

  /// The jobs as a plain struct, sorted by name and each by index.
  ClusterDef as_cluster_def() const;

  /// Each job with the addresses of some of its tasks. Throws kInvalidArgument for an index that is
  /// negative or above kLastIndex.
  static ClusterSpec sparse(Jobs jobs);

  /// Reads {"worker": ["hostA:4321", ...], "ps": {"1": "hostC:4321"}}. Throws kInvalidArgument with
  /// the line and column, or the JSON pointer, of the mistake.
  static ClusterSpec from_json(std::string_view text);

  /// Text for from_json(). A job whose indices are 0, 1, 2, ... is written as a list.
  std::string to_json() const;

  /// Names of the jobs, sorted.
  std::vector<std::string> jobs() const;

  bool has_job(const std::string& job) const { return jobs_.count(job) != 0; }
  bool has_task(const std::string& job, int index) const;

  // All of the following throw kNotFound for a job that is not in the cluster.

  int num_tasks(const std::string& job) const;

  /// Sorted.
  std::vector<int> task_indices(const std::string& job) const;

  /// Also throws kNotFound if the job has no such task.
  const std::string& task_address(const std::string& job, int index) const;

  /// Addresses by index; nullopt where a sparse job has no task.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;

  /// The whole cluster: job, index, address.
  const Jobs& as_map() const { return jobs_; }

  /// True if there are no tasks.
  bool empty() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  const std::map<int, std::string>& tasks_of(const std::string& job) const;

  Jobs jobs_;
};

/// ClusterSpec({"ps": ["hostC:4321"], "worker": ["hostA:4321"]}), jobs sorted.
std::ostream& operator<<(std::ostream& out, const ClusterSpec& spec);

}  // namespace tutti
