// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/simple.h"

namespace tutti {

std::string SimpleClusterResolver::master(const std::optional<std::string>& task_type,
                                          std::optional<int> task_id,
                                          const std::optional<std::string>& rpc_layer) const {
  const bool named = task_type && task_id;
  return master_url(named ? spec_.task_address(*task_type, *task_id) : options_.master, rpc_layer);
}

std::map<std::string, int> SimpleClusterResolver::num_accelerators(
    const std::optional<std::string>&, std::optional<int>) const {
  return options_.num_accelerators;
}

}  // namespace tutti
