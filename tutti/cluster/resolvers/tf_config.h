// SPDX-License-Identifier: Apache-2.0
//
// The cluster of the environment variable TF_CONFIG:
// {"cluster": {"worker": ["hostA:4321", "hostB:4321"]}, "task": {"type": "worker", "index": 0}}

#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// What is given here wins over TF_CONFIG.
struct TFConfigClusterResolverOptions {
  std::optional<std::string> task_type = std::nullopt;
  std::optional<int> task_id = std::nullopt;
  std::optional<std::string> rpc_layer = std::nullopt;
  std::optional<std::string> environment = std::nullopt;
};

/// Reads TF_CONFIG anew in every call; unset, empty or without "cluster" it is an empty cluster
/// (resolve_cluster() is stricter). At most 1 MiB of JSON, 16 levels deep. A job is a list of
/// addresses or an object of index and address; "rpc_layer", "session_master" and "environment" are
/// read as well, other keys are left alone. Every function throws kInvalidArgument, with the line
/// and column or the JSON pointer, if the variable is not right.
///
/// Threads: as ClusterResolver; nobody may change the environment meanwhile.
class TFConfigClusterResolver : public ClusterResolver {
 public:
  explicit TFConfigClusterResolver(TFConfigClusterResolverOptions options = {})
      : options_(std::move(options)) {}

  ClusterSpec cluster_spec() const override;

  /// The "session_master" as it stands if there is one; empty if the cluster has at most one task;
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
