// SPDX-License-Identifier: Apache-2.0
//
// The cluster of a SageMaker training job: one worker on each of its hosts.

#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// Values given here override the environment.
struct SageMakerClusterResolverOptions {
  int port = 2223;
  std::optional<std::string> task_type = std::nullopt;
  std::optional<int> task_id = std::nullopt;
  std::string rpc_layer = "";
  std::string environment = "";
};

/// Reads SM_HOSTS (a JSON list of host names) and SM_CURRENT_HOST again in each call. Hosts are
/// sorted, with numbers as numbers; all are workers. Every function throws kFailedPrecondition if a
/// variable is missing or this host is not in the list, kInvalidArgument if the list is malformed.
///
/// Threads: as ClusterResolver; the environment must not change meanwhile.
class SageMakerClusterResolver : public ClusterResolver {
 public:
  /// Throws kInvalidArgument unless the port is from 1 to 65535.
  explicit SageMakerClusterResolver(SageMakerClusterResolverOptions options = {});

  ClusterSpec cluster_spec() const override;

  /// Empty if the cluster has only one task; else the address of the given task, or of this one.
  std::string master(const std::optional<std::string>& task_type = std::nullopt,
                     std::optional<int> task_id = std::nullopt,
                     const std::optional<std::string>& rpc_layer = std::nullopt) const override;

  std::string environment() const override { return options_.environment; }
  std::string source() const override { return "SageMaker"; }
  bool is_explicit() const override { return false; }

 protected:
  std::optional<std::string> own_task_type() const override;
  std::optional<int> own_task_id() const override;
  std::string own_rpc_layer() const override { return options_.rpc_layer; }

 private:
  SageMakerClusterResolverOptions options_;
};

}  // namespace tutti
