// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/internal/cluster_json.h"

#include <utility>

#include "tutti/base/address.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/checked_json.h"

namespace tutti::internal {

const char* const kTfConfigExample =
    "TF_CONFIG='{\"cluster\": {\"worker\": [\"hostA:4321\", \"hostB:4321\"]}, "
    "\"task\": {\"type\": \"worker\", \"index\": 0}}'";

namespace {

std::string read_task_address(const JsonOrigin& origin, const std::string& pointer,
                              const Json& value) {
  if (!value.is_string()) origin.refuse_value(pointer, value, "an address \"host:port\"");
  const auto& text = value.get_ref<const std::string&>();
  try {
    parse_address(text);
  } catch (const Error& error) {
    throw Error(error.code(), message(origin.who, ": at ", in_quotes(pointer), ": ", error.what()));
  }
  return text;
}

std::map<int, std::string> read_tasks(const JsonOrigin& origin, const std::string& pointer,
                                      const Json& value) {
  std::map<int, std::string> tasks;
  if (value.is_array()) {
    if (value.size() > size_t{ClusterSpec::kLastIndex}) {
      origin.refuse_at(pointer, message("the list has ", value.size(), " tasks"));
    }
    for (const Json& address : value) {
      const int index = static_cast<int>(tasks.size());
      tasks[index] =
          read_task_address(origin, append_to_pointer(pointer, std::to_string(index)), address);
    }
  } else if (value.is_object()) {
    for (const auto& [key, address] : value.items()) {
      const std::string here = append_to_pointer(pointer, key);
      const int index = read_index_key(origin, here, key);
      if (tasks.count(index) != 0) origin.refuse_at(here, "duplicate index");
      tasks[index] = read_task_address(origin, here, address);
    }
  } else {
    origin.refuse_value(pointer, value, "a list of addresses or an object of index and address");
  }
  return tasks;
}

ClusterSpec read_cluster(const JsonOrigin& origin, const std::string& pointer, const Json& value) {
  if (!value.is_object()) origin.refuse_value(pointer, value, "an object of jobs");
  ClusterSpec::Jobs jobs;
  for (const auto& [job, tasks] : value.items()) {
    if (job.empty()) origin.refuse_at(pointer, "a job has an empty name");
    jobs[job] = read_tasks(origin, append_to_pointer(pointer, job), tasks);
  }
  return ClusterSpec::sparse(std::move(jobs));
}

void read_task(const JsonOrigin& origin, const Json& task, TfConfig& config) {
  if (!task.is_object())
    origin.refuse_value("/task", task, "an object with \"type\" and \"index\"");
  if (const auto type = task.find("type"); type != task.end()) {
    // A job may have a number as its name, which some programs write without quotes.
    config.task_type =
        type->is_number_integer() ? type->dump() : read_string(origin, "/task/type", *type);
  }
  if (const auto index = task.find("index"); index != task.end()) {
    config.task_id = read_index(origin, "/task/index", *index);
  }
}

}  // namespace

TfConfig parse_tf_config(std::string_view text) {
  const JsonOrigin origin{"TF_CONFIG", kTfConfigExample};
  const Json json = parse_json_object(text, origin);
  TfConfig config;
  config.has_anything = !json.empty();
  if (const auto cluster = json.find("cluster"); cluster != json.end()) {
    config.has_cluster = true;
    config.cluster = read_cluster(origin, "/cluster", *cluster);
  }
  if (const auto task = json.find("task"); task != json.end()) read_task(origin, *task, config);
  if (const auto layer = json.find("rpc_layer"); layer != json.end()) {
    config.rpc_layer = read_string(origin, "/rpc_layer", *layer);
  }
  if (const auto master = json.find("session_master"); master != json.end()) {
    config.session_master = read_string(origin, "/session_master", *master);
  }
  if (const auto environment = json.find("environment"); environment != json.end()) {
    config.environment = read_string(origin, "/environment", *environment);
  }
  return config;
}

ClusterSpec parse_cluster_json(std::string_view text) {
  const JsonOrigin origin{"ClusterSpec", "{\"worker\": [\"hostA:4321\", \"hostB:4321\"]}"};
  return read_cluster(origin, "", parse_json_object(text, origin));
}

}  // namespace tutti::internal
