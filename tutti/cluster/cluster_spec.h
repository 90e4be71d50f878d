// SPDX-License-Identifier: Apache-2.0
//
// The tasks of a cluster and where they are: for each job ("worker", "chief", "ps", ...) the
// addresses of its tasks by index. A ClusterResolver (cluster_resolver.h) finds one.

#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti {

/// Jobs, task indices and addresses. A plain value: any number of threads may read one object.
///
/// An address is "host:port" (address.h), or empty when it is not known yet and will be learnt when
/// the tasks meet. It is kept as it is given; validate_cluster_task() (task_roles.h) checks it.
class ClusterSpec {
 public:
  using Jobs = std::map<std::string, std::map<int, std::string>>;

  /// The largest index of a task, so that a typing error cannot ask for all memory.
  static constexpr int kLastIndex = 999'999;

  /// No job: the cluster of a program that runs alone.
  ClusterSpec() = default;

  /// Each job with the addresses of its tasks 0, 1, 2, ...; each job may be there once:
  /// ClusterSpec{{"worker", {"hostA:4321", "hostB:4321"}}, {"ps", {"hostC:4321"}}}.
  ClusterSpec(std::initializer_list<std::pair<std::string, std::vector<std::string>>> jobs);
  explicit ClusterSpec(const std::map<std::string, std::vector<std::string>>& jobs);

  /// Each job with the addresses of some of its tasks. Throws kInvalidArgument for an index that is
  /// negative or above kLastIndex.
  static ClusterSpec sparse(Jobs jobs);

  /// Reads {"worker": ["hostA:4321", ...], "ps": {"1": "hostC:4321"}}. Throws kInvalidArgument with
  /// the line and column, or the JSON pointer, of what is wrong.
  static ClusterSpec from_json(std::string_view text);

  /// What from_json() reads. A job whose indices are 0, 1, 2, ... is a list.
  std::string to_json() const;

  /// Names of the jobs, sorted.
  std::vector<std::string> jobs() const;

  bool has_job(const std::string& job) const { return jobs_.count(job) != 0; }
  bool has_task(const std::string& job, int index) const;

  // All of the following throw kNotFound for a job that is not there.

  int num_tasks(const std::string& job) const;

  /// Sorted.
  std::vector<int> task_indices(const std::string& job) const;

  /// Also throws kNotFound if the job has no such task.
  const std::string& task_address(const std::string& job, int index) const;

  /// Addresses by index; nothing where a sparse job has no task.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;

  /// Everything: job, index, address.
  const Jobs& as_map() const { return jobs_; }

  /// True if there is no task at all.
  bool empty() const;

  bool operator==(const ClusterSpec&) const = default;

 private:
  const std::map<int, std::string>& tasks_of(const std::string& job) const;

  Jobs jobs_;
};

/// ClusterSpec({"ps": ["hostC:4321"], "worker": ["hostA:4321"]}), jobs sorted.
std::ostream& operator<<(std::ostream& out, const ClusterSpec& spec);

}  // namespace tutti
