// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/cluster_def.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/cluster/internal/checked_json.h"

namespace tutti {
namespace {

using internal::append_to_pointer;
using internal::Json;
using internal::JsonOrigin;

JsonOrigin cluster_origin(const char* who) {
  return {.who = who, .example = R"({"job": [{"name": "worker", "tasks": {"0": "hostA:4321"}}]})"};
}

JsonOrigin filters_origin() {
  return {.who = "ClusterDeviceFilters",
          .example = R"({"jobs": [{"name": "worker", "tasks": {"0": )"
                     R"({"device_filters": ["/job:ps"]}}}]})"};
}

// "jobName" as "job_name".
std::string snake_case(const std::string& key) {
  std::string out;
  for (const char c : key) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper) out += '_';
    out += upper ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

// The members of an object by their names in snake_case. Throws if one is not `known`.
std::map<std::string, const Json*> members(const JsonOrigin& origin, const std::string& pointer,
                                           const Json& value, const std::set<std::string>& known) {
  if (!value.is_object()) origin.refuse_value(pointer, value, "an object");
  std::map<std::string, const Json*> out;
  for (const auto& [key, member] : value.items()) {
    const std::string here = append_to_pointer(pointer, key);
    const std::string name = snake_case(key);
    if (known.count(name) == 0) origin.refuse_at(here, "unknown key");
    if (!out.emplace(name, &member).second) origin.refuse_at(here, "duplicate key");
  }
  return out;
}

const Json* find(const std::map<std::string, const Json*>& members, const char* name) {
  const auto found = members.find(name);
  return found == members.end() ? nullptr : found->second;
}

// Calls read_task(pointer, value) for each task of a job, and returns the results by index.
template <class Read>
auto read_tasks_of_job(const JsonOrigin& origin, const std::string& pointer, const Json& tasks,
                       const Read& read_task) {
  if (!tasks.is_object()) origin.refuse_value(pointer, tasks, "an object of index and task");
  std::map<int, decltype(read_task(pointer, tasks))> out;
  for (const auto& [key, task] : tasks.items()) {
    const std::string here = append_to_pointer(pointer, key);
    const int index = internal::read_index_key(origin, here, key);
    if (!out.emplace(index, read_task(here, task)).second) {
      origin.refuse_at(here, "duplicate index");
    }
  }
  return out;
}

// Calls read_task for each task of a list of jobs {"name": ..., "tasks": {...}}.
template <class Job, class Read>
std::vector<Job> read_jobs(const JsonOrigin& origin, const std::string& pointer, const Json& jobs,
                           const Read& read_task) {
  if (!jobs.is_array()) origin.refuse_value(pointer, jobs, "a list of jobs");
  std::vector<Job> out;
  std::set<std::string> names;
  for (const Json& job : jobs) {
    const std::string here = append_to_pointer(pointer, std::to_string(out.size()));
    const auto parts = members(origin, here, job, {"name", "tasks"});
    const Json* const name = find(parts, "name");
    if (name == nullptr) origin.refuse_at(here, "the job has no \"name\"");
    const std::string name_pointer = append_to_pointer(here, "name");
    Job read{internal::read_string(origin, name_pointer, *name), {}};
    if (read.name.empty()) origin.refuse_at(name_pointer, "the name is empty");
    if (!names.insert(read.name).second) origin.refuse_at(name_pointer, "duplicate job");
    if (const Json* const tasks = find(parts, "tasks")) {
      read.tasks = read_tasks_of_job(origin, append_to_pointer(here, "tasks"), *tasks, read_task);
    }
    out.push_back(std::move(read));
  }
  return out;
}

ClusterDef read_cluster_def(const JsonOrigin& origin, const std::string& pointer,
                            const Json& value) {
  const auto parts = members(origin, pointer, value, {"job"});
  const Json* const jobs = find(parts, "job");
  if (jobs == nullptr) return {};
  return {read_jobs<JobDef>(origin, append_to_pointer(pointer, "job"), *jobs,
                            [&](const std::string& here, const Json& task) {
                              std::string address = internal::read_string(origin, here, task);
                              try {
                                parse_address(address);
                              } catch (const Error& error) {
                                throw Error(error.code(),
                                            message(origin.who, ": at ", in_quotes(here), ": ",
                                                    error.what()));
                              }
                              return address;
                            })};
}

ClusterDeviceFilters read_filters(const JsonOrigin& origin, const std::string& pointer,
                                  const Json& value) {
  const auto parts = members(origin, pointer, value, {"jobs"});
  const Json* const jobs = find(parts, "jobs");
  if (jobs == nullptr) return {};
  return {read_jobs<JobDeviceFilters>(
      origin, append_to_pointer(pointer, "jobs"), *jobs,
      [&](const std::string& here, const Json& task) {
        TaskDeviceFilters out;
        const auto of_task = members(origin, here, task, {"device_filters"});
        const Json* const filters = find(of_task, "device_filters");
        if (filters == nullptr) return out;
        const std::string list = append_to_pointer(here, "device_filters");
        if (!filters->is_array()) origin.refuse_value(list, *filters, "a list of devices");
        for (const Json& filter : *filters) {
          const std::string place =
              append_to_pointer(list, std::to_string(out.device_filters.size()));
          out.device_filters.push_back(internal::read_string(origin, place, filter));
          if (out.device_filters.back().empty()) origin.refuse_at(place, "the filter is empty");
        }
        return out;
      })};
}

// {"job": [{"name": "worker", "tasks": {"0": ...}}]}
template <class Job, class Write>
std::string write_jobs(const char* key, const std::vector<Job>& jobs, const Write& write_task) {
  std::string out = message("{\"", key, "\": [");
  for (size_t i = 0; i < jobs.size(); ++i) {
    out += message(i == 0 ? "" : ", ", "{\"name\": ", internal::json_text(jobs[i].name),
                   ", \"tasks\": {");
    bool first = true;
    for (const auto& [index, task] : jobs[i].tasks) {
      out += message(std::exchange(first, false) ? "" : ", ", '"', index, "\": ", write_task(task));
    }
    out += "}}";
  }
  return out + "]}";
}

}  // namespace

ClusterDef ClusterDef::from_json(std::string_view text) {
  const JsonOrigin origin = cluster_origin("ClusterDef");
  return read_cluster_def(origin, "", internal::parse_json_object(text, origin));
}

std::string ClusterDef::to_json() const { return write_jobs("job", job, internal::json_text); }

void ClusterDeviceFilters::set_device_filters(const std::string& job, int index,
                                              std::vector<std::string> filters) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument,
                message("ClusterDeviceFilters::set_device_filters: ", what));
  };
  if (job.empty()) refuse("the job has an empty name. Name it, for example \"worker\".");
  if (index < 0 || index > ClusterSpec::kLastIndex) {
    refuse(message("job ", in_quotes(job), " cannot have a task with index ", index,
                   ". Indices range from 0 to ", ClusterSpec::kLastIndex, "."));
  }
  if (std::count(filters.begin(), filters.end(), "") != 0) {
    refuse(message("a filter of /job:", job, "/task:", index,
                   " is empty. Name devices, for example \"/job:ps\"."));
  }
  const auto find_job = [&](auto wanted) {
    return std::find_if(jobs.begin(), jobs.end(),
                        [&](const JobDeviceFilters& other) { return wanted(other.name, job); });
  };
  auto place = find_job(std::equal_to<>());
  if (place == jobs.end()) place = jobs.insert(find_job(std::greater<>()), {job});
  place->tasks[index] = {std::move(filters)};
}

ClusterDeviceFilters ClusterDeviceFilters::from_json(std::string_view text) {
  const JsonOrigin origin = filters_origin();
  return read_filters(origin, "", internal::parse_json_object(text, origin));
}

std::string ClusterDeviceFilters::to_json() const {
  return write_jobs("jobs", jobs, [](const TaskDeviceFilters& task) {
    std::string out = "{\"device_filters\": [";
    for (size_t i = 0; i < task.device_filters.size(); ++i) {
      out += (i == 0 ? "" : ", ") + internal::json_text(task.device_filters[i]);
    }
    return out + "]}";
  });
}

ServerDef ServerDef::from_json(std::string_view text) {
  const JsonOrigin origin{
      .who = "ServerDef",
      .example = R"({"cluster": {"job": [{"name": "ps", "tasks": {"0": "hostA:4321"}}]}, )"
                 R"("job_name": "ps", "task_index": 0, "protocol": "grpc"})"};
  const Json json = internal::parse_json_object(text, origin);
  const auto parts = members(origin, "", json,
                             {"cluster", "job_name", "task_index", "protocol", "port",
                              "cluster_device_filters", "default_session_config"});
  ServerDef def;
  if (const Json* const value = find(parts, "cluster")) {
    def.cluster = read_cluster_def(origin, "/cluster", *value);
  }
  if (const Json* const value = find(parts, "job_name")) {
    def.job_name = internal::read_string(origin, "/job_name", *value);
  }
  if (const Json* const value = find(parts, "task_index")) {
    def.task_index = internal::read_index(origin, "/task_index", *value);
  }
  if (const Json* const value = find(parts, "protocol")) {
    def.protocol = internal::read_string(origin, "/protocol", *value);
  }
  if (const Json* const value = find(parts, "port")) {
    const bool valid = value->is_number_unsigned() && value->get<uint64_t>() <= 65535;
    if (!valid) origin.refuse_value("/port", *value, "a port from 0 to 65535");
    def.port = value->get<int>();
  }
  if (const Json* const value = find(parts, "cluster_device_filters")) {
    def.cluster_device_filters = read_filters(origin, "/cluster_device_filters", *value);
  }
  return def;
}

std::string ServerDef::to_json() const {
  return message("{\"cluster\": ", cluster.to_json(),
                 ", \"job_name\": ", internal::json_text(job_name),
                 ", \"task_index\": ", task_index,
                 ", \"protocol\": ", internal::json_text(protocol), ", \"port\": ", port,
                 ", \"cluster_device_filters\": ", cluster_device_filters.to_json(), '}');
}

}  // namespace tutti
