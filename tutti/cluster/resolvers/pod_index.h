// SPDX-License-Identifier: Apache-2.0
//
// The cluster of numbered Kubernetes pods, those of an indexed Job or a StatefulSet, by their DNS
// names. It needs neither the API of Kubernetes nor the right to use it (kubernetes.h lists pods
// through the API).

#pragma once

#include <optional>
#include <string>
#include <utility>

#include "tutti/cluster/resolvers/rank_resolver.h"

namespace tutti {

/// Values given here override the environment.
struct PodIndexClusterResolverOptions {
  std::optional<int> num_pods = std::nullopt;         ///< TUTTI_POD_COUNT
  std::optional<std::string> service = std::nullopt;  ///< TUTTI_POD_SERVICE: a headless Service
  std::optional<int> port = std::nullopt;             ///< TUTTI_POD_PORT, else 8470
};

/// Every pod is a worker at "<name>-<index>.<service>:<port>". The index of this pod is
/// JOB_COMPLETION_INDEX, which Kubernetes sets in the pods of an indexed Job, else the number at
/// the end of HOSTNAME, as in a StatefulSet; the name is the rest of HOSTNAME. Nothing in a pod
/// says how many pods there are. A number of 1 means that each pod runs alone, whatever its index.
///
/// Threads: as RankClusterResolver.
class PodIndexClusterResolver : public RankClusterResolver {
 public:
  explicit PodIndexClusterResolver(PodIndexClusterResolverOptions options = {})
      : options_(std::move(options)) {}

  RankEnvironment ranks() const override;
  ClusterSpec cluster_spec() const override;
  std::string rendezvous_address() const override;

  /// The name of the pods without their index, and the Service.
  std::string job_id() const override;

  std::string source() const override { return "numbered pods"; }

 private:
  std::string address_of(int index) const;

  PodIndexClusterResolverOptions options_;
};

}  // namespace tutti
