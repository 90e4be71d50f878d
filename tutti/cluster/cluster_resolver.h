// SPDX-License-Identifier: Apache-2.0
//
// How a process learns which cluster it belongs to and which task it is. The resolvers are in
// resolvers/; resolve_cluster() (resolve_cluster.h) chooses one from the environment.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tutti/cluster/cluster_spec.h"

namespace tutti {

/// Finds the tasks of a cluster and which of them this process is.
///
/// Threads: const functions may run concurrently; a setter must not overlap any other call.
class ClusterResolver {
 public:
  ClusterResolver() = default;
  virtual ~ClusterResolver();
  ClusterResolver(const ClusterResolver&) = delete;
  ClusterResolver& operator=(const ClusterResolver&) = delete;

  /// The current cluster, resolved again by each call. Empty when the program runs alone. Some
  /// addresses may be empty, see rendezvous_address(). Throws when it cannot be resolved.
  virtual ClusterSpec cluster_spec() const = 0;

  /// The address a client connects to: that of the given task, or of this one when none is given,
  /// as "<rpc_layer>://host:port", or "host:port" when there is no rpc layer. Empty when unknown.
  /// Throws kNotFound for a task that is not in the cluster.
  virtual std::string master(const std::optional<std::string>& task_type = std::nullopt,
                             std::optional<int> task_id = std::nullopt,
                             const std::optional<std::string>& rpc_layer = std::nullopt) const;

  /// Number of devices of a task by type, {{"GPU", 2}}. Empty when the resolver does not know; a
  /// strategy then counts the devices of its process.
  virtual std::map<std::string, int> num_accelerators(
      const std::optional<std::string>& task_type = std::nullopt,
      std::optional<int> task_id = std::nullopt) const;

  /// The platform the program runs on, if that matters; usually empty.
  virtual std::string environment() const { return ""; }

  /// Where tasks that do not know each other's addresses meet: the "host:port" on which the leader
  /// of the cluster (coordination_leader() in task_roles.h) listens. Empty when the program runs
  /// alone. Launchers such as torchrun and mpirun provide no other address: every other one in
  /// cluster_spec() is then empty, and becomes known when the tasks have met.
  virtual std::string rendezvous_address() const;

  /// The launcher's job id: the same in all tasks of one job and, if the launcher ensures it,
  /// different between jobs, so that tasks that meet can check that they belong together. Empty
  /// when there is none.
  virtual std::string job_id() const { return ""; }

  /// Where the cluster was found, for diagnostics: "TF_CONFIG", "an explicit cluster".
  virtual std::string source() const { return "an explicit cluster"; }

  /// True if the program gave the cluster; false if it was read from the environment.
  virtual bool is_explicit() const { return true; }

  /// This process's task, or nothing when it has none. The type is "worker", "chief", "ps" or
  /// "evaluator".
  std::optional<std::string> task_type() const { return task_type_ ? task_type_ : own_task_type(); }
  std::optional<int> task_id() const { return task_id_ ? task_id_ : own_task_id(); }

  /// The prefix of master(): "grpc", or empty.
  std::string rpc_layer() const { return rpc_layer_ ? *rpc_layer_ : own_rpc_layer(); }

  /// These override what the resolver finds, permanently.
  void set_task_type(std::optional<std::string> type) { task_type_ = std::move(type); }
  void set_task_id(std::optional<int> id) { task_id_ = id; }
  void set_rpc_layer(std::optional<std::string> layer) { rpc_layer_ = std::move(layer); }

 protected:
  /// What the resolver finds; the setters override it.
  virtual std::optional<std::string> own_task_type() const { return std::nullopt; }
  virtual std::optional<int> own_task_id() const { return std::nullopt; }
  virtual std::string own_rpc_layer() const { return ""; }

  /// "<layer>://<address>", with this resolver's layer if none is given.
  std::string master_url(const std::string& address, const std::optional<std::string>& layer) const;

 private:
  std::optional<std::string> task_type_;
  std::optional<int> task_id_;
  std::optional<std::string> rpc_layer_;
};

}  // namespace tutti
