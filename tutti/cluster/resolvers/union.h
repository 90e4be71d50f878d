// SPDX-License-Identifier: Apache-2.0
//
// Merges several clusters into one: for example, workers from one and parameter servers from
// another.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// Values given here override those of the first resolver.
struct UnionResolverOptions {
  std::optional<std::string> task_type = std::nullopt;
  std::optional<int> task_id = std::nullopt;
  std::optional<std::string> rpc_layer = std::nullopt;
};

/// Merges the clusters of its resolvers. If several have the same job and its indices are 0, 1, 2,
/// ... in each, the tasks are concatenated in the order of the resolvers; if one is sparse, indices
/// are kept and must differ, else cluster_spec() throws kInvalidArgument. Everything else is taken
/// from the first resolver. Threads: as ClusterResolver, and as the resolvers.
class UnionResolver : public ClusterResolver {
 public:
  /// Throws kInvalidArgument if there are no resolvers, or one of them is null.
  explicit UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                         UnionResolverOptions options = {});

  ClusterSpec cluster_spec() const override;

  /// The address of the given task in the merged cluster; without a task, the first resolver's
  /// master().
  std::string master(const std::optional<std::string>& task_type = std::nullopt,
                     std::optional<int> task_id = std::nullopt,
                     const std::optional<std::string>& rpc_layer = std::nullopt) const override;

  std::map<std::string, int> num_accelerators(
      const std::optional<std::string>& task_type = std::nullopt,
      std::optional<int> task_id = std::nullopt) const override;

  std::string environment() const override;
  std::string job_id() const override;

  /// "TF_CONFIG and an explicit cluster"
  std::string source() const override;

 protected:
  std::optional<std::string> own_task_type() const override;
  std::optional<int> own_task_id() const override;
  std::string own_rpc_layer() const override;

 private:
  std::vector<std::shared_ptr<const ClusterResolver>> resolvers_;
  UnionResolverOptions options_;
};

}  // namespace tutti
