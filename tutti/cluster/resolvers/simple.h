// SPDX-License-Identifier: Apache-2.0
//
// A cluster that the program itself specifies.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

struct SimpleClusterResolverOptions {
  std::string master = "";  ///< The result of master() without a task.
  std::optional<std::string> task_type = std::nullopt;
  std::optional<int> task_id = std::nullopt;
  std::string environment = "";
  std::map<std::string, int> num_accelerators = {};
  std::string rpc_layer = "";
};

/// Returns what it is constructed with. Threads: as ClusterResolver.
class SimpleClusterResolver : public ClusterResolver {
 public:
  explicit SimpleClusterResolver(ClusterSpec spec, SimpleClusterResolverOptions options = {})
      : spec_(std::move(spec)), options_(std::move(options)) {}

  ClusterSpec cluster_spec() const override { return spec_; }

  /// The address of the given task; without a task, the options' master.
  std::string master(const std::optional<std::string>& task_type = std::nullopt,
                     std::optional<int> task_id = std::nullopt,
                     const std::optional<std::string>& rpc_layer = std::nullopt) const override;

  /// The options' num_accelerators, for every task.
  std::map<std::string, int> num_accelerators(
      const std::optional<std::string>& task_type = std::nullopt,
      std::optional<int> task_id = std::nullopt) const override;

  std::string environment() const override { return options_.environment; }

 protected:
  std::optional<std::string> own_task_type() const override { return options_.task_type; }
  std::optional<int> own_task_id() const override { return options_.task_id; }
  std::string own_rpc_layer() const override { return options_.rpc_layer; }

 private:
  ClusterSpec spec_;
  SimpleClusterResolverOptions options_;
};

}  // namespace tutti
