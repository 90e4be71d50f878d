// SPDX-License-Identifier: Apache-2.0
//
// Reads the cluster from the environment variable TF_CONFIG:
// {"cluster": {"worker": ["hostA:4321", "hostB:4321"]}, "task": {"type": "worker", "index": 0}}

#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// Values given here override TF_CONFIG.
struct TFConfigClusterResolverOptions {
  std::optional<std::string> task_type = std::nullopt;
  std::optional<int> task_id = std::nullopt;
  std::optional<std::string> rpc_layer = std::nullopt;
  std::optional<std::string> environment = std::nullopt;
};

/// Reads TF_CONFIG again in every call; if it is unset, empty or has no "cluster", the cluster is
/// empty (resolve_cluster() is stricter). The JSON may have up to 1 MiB and 16 levels. A job is a
/// list of addresses or an object of index and address; "rpc_layer", "session_master" and
/// "environment" are read as well, other keys are ignored. Every function throws kInvalidArgument,
/// with the line and column or the JSON pointer, if the variable is malformed.
///
/// Threads: as ClusterResolver; the environment must not change meanwhile.
class TFConfigClusterResolver : public ClusterResolver {
 public:
  explicit TFConfigClusterResolver(TFConfigClusterResolverOptions options = {})
      : options_(std::move(options)) {}

  ClusterSpec cluster_spec() const override;

  /// The "session_master", verbatim, if there is one; empty if the cluster has at most one task;
  /// else the address of the given task, or of this one.
  std::string master(const std::optional<std::string>& task_type = std::nullopt,
                     std::optional<int> task_id = std::nullopt,
                     const std::optional<std::string>& rpc_layer = std::nullopt) const override;

  std::string environment() const override;
  std::string source() const override { return "TF_CONFIG"; }
  bool is_explicit() const override { return false; }

 protected:
  std::optional<std::string> own_task_type() const override;
  std::optional<int> own_task_id() const override;
  std::string own_rpc_layer() const override;

 private:
  TFConfigClusterResolverOptions options_;
};

}  // namespace tutti
