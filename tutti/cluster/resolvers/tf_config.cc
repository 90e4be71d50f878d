// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/tf_config.h"

#include "tutti/base/env.h"
#include "tutti/cluster/internal/cluster_json.h"

namespace tutti {
namespace {

internal::TfConfig read_tf_config() {
  const auto text = read_env("TF_CONFIG");
  return text ? internal::parse_tf_config(*text) : internal::TfConfig();
}

size_t count_all_tasks(const ClusterSpec& spec) {
  size_t count = 0;
  for (const auto& [job, tasks] : spec.as_map()) count += tasks.size();
  return count;
}

}  // namespace

ClusterSpec TFConfigClusterResolver::cluster_spec() const { return read_tf_config().cluster; }

std::string TFConfigClusterResolver::master(const std::optional<std::string>& task_type,
                                            std::optional<int> task_id,
                                            const std::optional<std::string>& rpc_layer) const {
  const internal::TfConfig config = read_tf_config();
  if (config.session_master) return *config.session_master;
  if (count_all_tasks(config.cluster) <= 1) return "";
  return ClusterResolver::master(task_type, task_id, rpc_layer);
}

std::string TFConfigClusterResolver::environment() const {
  return options_.environment ? *options_.environment : read_tf_config().environment;
}

std::optional<std::string> TFConfigClusterResolver::own_task_type() const {
  return options_.task_type ? options_.task_type : read_tf_config().task_type;
}

std::optional<int> TFConfigClusterResolver::own_task_id() const {
  return options_.task_id ? options_.task_id : read_tf_config().task_id;
}

std::string TFConfigClusterResolver::own_rpc_layer() const {
  return options_.rpc_layer ? *options_.rpc_layer : read_tf_config().rpc_layer;
}

}  // namespace tutti
