// SPDX-License-Identifier: Apache-2.0
//
// The cluster of the running machines of an instance group of Google Compute Engine.

#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

struct GCEClusterResolverOptions {
  // These four must be given; every task listens on the port.
  std::string project = "";
  std::string zone = "";
  std::string instance_group = "";
  int port = 0;

  std::string task_type = "worker";  ///< The job of all machines.

  /// Without it, the machine on which this process runs is looked up in the group.
  std::optional<int> task_id = std::nullopt;

  std::string rpc_layer = "grpc";

  /// Replaces the token of the machine's service account, for example outside of Compute Engine:
  /// `gcloud auth print-access-token`. This process then has a task only if task_id is given.
  std::optional<std::string> access_token = std::nullopt;

  /// Limits one call of the resolver, which sends a request for each machine.
  std::chrono::seconds timeout{30};

  std::string api_server = "https://compute.googleapis.com";
  std::string ca_file = "";  ///< Authorities for the API; those of the system if empty.

  /// "host" or "host:port"; GCE_METADATA_HOST, else metadata.google.internal, if it is not given.
  std::optional<std::string> metadata_server = std::nullopt;
};

/// Lists the machines again in each call: those of the group that are running, with the internal IP
/// address of their first network interface, sorted by it. Functions that send requests throw
/// kFailedPrecondition without the rights to list, or if no machine is running, kNotFound if there
/// is no such group, kUnavailable or kDeadlineExceeded if there is no answer, kDataLoss for an
/// answer that cannot be read.
///
/// Threads: as ClusterResolver; the environment must not change meanwhile.
class GCEClusterResolver : public ClusterResolver {
 public:
  /// Throws kInvalidArgument if one of the four is missing or malformed.
  explicit GCEClusterResolver(GCEClusterResolverOptions options);

  ClusterSpec cluster_spec() const override;
  std::string source() const override { return "Compute Engine"; }

 protected:
  std::optional<std::string> own_task_type() const override { return options_.task_type; }
  std::optional<int> own_task_id() const override;
  std::string own_rpc_layer() const override { return options_.rpc_layer; }

 private:
  class Api;

  GCEClusterResolverOptions options_;
};

}  // namespace tutti
