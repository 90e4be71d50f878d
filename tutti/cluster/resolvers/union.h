// SPDX-License-Identifier: Apache-2.0
//
// One cluster out of several: some workers from here, some parameter servers from there.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// What is given here wins over the first resolver.
struct UnionResolverOptions {
  std::optional<std::string> task_type = std::nullopt;
  std::optional<int> task_id = std::nullopt;
  std::optional<std::string> rpc_layer = std::nullopt;
};

/// Puts the clusters of resolvers together. A job that several of them have: if its indices are
/// 0, 1, 2, ... in each, the tasks follow one another in the order of the resolvers; if one is
/// sparse, indices are kept and must differ, else cluster_spec() throws kInvalidArgument.
/// Everything else comes from the first resolver. Threads: as ClusterResolver, and as the
/// resolvers.
class UnionResolver : public ClusterResolver {
 public:
  /// Throws kInvalidArgument if there is no resolver, or one of them is null.
  explicit UnionResolver(std::vector<std::shared_ptr<const ClusterResolver>> resolvers,
                         UnionResolverOptions options = {});

  ClusterSpec cluster_spec() const override;

  /// The address of the given task in the whole cluster; without a task, that of the first
  /// resolver.
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
