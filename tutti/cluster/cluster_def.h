// SPDX-License-Identifier: Apache-2.0
//
// A cluster, one server of it, and what each task sees of the others, as plain structs that
// programs store and send. ClusterSpec (cluster_spec.h) is the class that answers questions about a
// cluster; ClusterSpec(def) and as_cluster_def() convert.
//
// The JSON is that of TensorFlow's messages of the same names, so that programs in both languages
// can exchange it: {"job": [{"name": "worker", "tasks": {"0": "hostA:4321"}}]}. Keys may be written
// as in "job_name" or as in "jobName"; to_json() writes the former. Reading is strict: at most 1
// MiB and 16 levels, no unknown or duplicate keys. All from_json() throw kInvalidArgument with the
// line and column, or the JSON pointer, of the mistake.

#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tutti {

/// One job: the addresses of its tasks, by index. A plain value.
struct JobDef {
  std::string name;
  std::map<int, std::string> tasks = {};

  bool operator==(const JobDef&) const = default;
};

/// The jobs of a cluster, in any order. A plain value.
struct ClusterDef {
  std::vector<JobDef> job = {};

  static ClusterDef from_json(std::string_view text);
  std::string to_json() const;

  bool operator==(const ClusterDef&) const = default;
};

/// The devices that one task may see, such as "/job:ps"; the task always sees its own. A plain
/// value.
struct TaskDeviceFilters {
  std::vector<std::string> device_filters = {};

  bool operator==(const TaskDeviceFilters&) const = default;
};

/// The same for the tasks of one job, by index. A plain value.
struct JobDeviceFilters {
  std::string name;
  std::map<int, TaskDeviceFilters> tasks = {};

  bool operator==(const JobDeviceFilters&) const = default;
};

/// Which devices the tasks of a cluster see. A task without filters sees all of them. A plain
/// value.
struct ClusterDeviceFilters {
  std::vector<JobDeviceFilters> jobs = {};  ///< Sorted by name if set_device_filters() makes them.

  /// Sets the filters of one task, in place of those it had. Throws kInvalidArgument for a job
  /// without a name, an index outside of 0 to ClusterSpec::kLastIndex, or an empty filter.
  void set_device_filters(const std::string& job, int index, std::vector<std::string> filters);

  static ClusterDeviceFilters from_json(std::string_view text);
  std::string to_json() const;

  bool operator==(const ClusterDeviceFilters&) const = default;
};

/// One server: the cluster, and which of its tasks the server is. The default_session_config of
/// TensorFlow's message is not kept, because there are no sessions; from_json() skips it. A plain
/// value.
struct ServerDef {
  ClusterDef cluster = {};
  std::string job_name = "";
  int task_index = 0;
  std::string protocol = "grpc";
  int port = 0;  ///< 0: that of the task's address.
  ClusterDeviceFilters cluster_device_filters = {};

  static ServerDef from_json(std::string_view text);
  std::string to_json() const;

  bool operator==(const ServerDef&) const = default;
};

}  // namespace tutti
