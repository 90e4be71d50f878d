// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/cluster_resolver.h"

#include "tutti/cluster/task_roles.h"

namespace tutti {

ClusterResolver::~ClusterResolver() = default;

std::string ClusterResolver::master(const std::optional<std::string>& task_type,
                                    std::optional<int> task_id,
                                    const std::optional<std::string>& rpc_layer) const {
  const auto type = task_type ? task_type : this->task_type();
  const auto id = task_id ? task_id : this->task_id();
  if (!type || !id) return "";
  const ClusterSpec spec = cluster_spec();
  if (spec.empty() && !task_type && !task_id) return "";
  return master_url(spec.task_address(*type, *id), rpc_layer);
}

std::map<std::string, int> ClusterResolver::num_accelerators(const std::optional<std::string>&,
                                                             std::optional<int>) const {
  return {};
}

std::string ClusterResolver::rendezvous_address() const {
  const ClusterSpec spec = cluster_spec();
  const auto leader = coordination_leader_task(spec);
  return leader ? spec.task_address(leader->job, leader->index) : "";
}

std::string ClusterResolver::master_url(const std::string& address,
                                        const std::optional<std::string>& layer) const {
  const std::string used = layer ? *layer : rpc_layer();
  return used.empty() || address.empty() ? address : used + "://" + address;
}

}  // namespace tutti
