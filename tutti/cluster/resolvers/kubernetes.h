// SPDX-License-Identifier: Apache-2.0
//
// The cluster of the pods that carry certain labels, listed through the API of Kubernetes. For the
// pods of one indexed Job or StatefulSet, pod_index.h needs neither the API nor the right to use
// it.

#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/cluster/task_roles.h"

namespace tutti {

/// Where the program runs: in a pod of the cluster, or elsewhere.
enum class KubernetesExecutableLocation { kWithinCluster, kOffCluster };

struct KubernetesClusterResolverOptions {
  /// For each job, its label selectors; the pods of several selectors are concatenated.
  std::map<std::string, std::vector<std::string>> job_to_label_mapping = {
      {"worker", {"job-name=tensorflow"}}};

  /// The port on which every task listens.
  int tf_server_port = 8470;

  std::string rpc_layer = "grpc";

  KubernetesExecutableLocation executable_location = KubernetesExecutableLocation::kWithinCluster;

  /// How many pods a job has. Without it, those that the API lists, which may be fewer than will
  /// start.
  std::map<std::string, int> num_tasks = {};

  /// How long to wait for pods that are missing or do not run yet; 0: they are an error
  /// immediately.
  std::chrono::seconds wait_for_pods{0};

  /// Limits one listing of the pods, which may take several requests.
  std::chrono::seconds timeout{30};

  /// The namespace of the pods. Empty: all of them, for which a service account needs a cluster
  /// role. Without it: that of this pod, or "default" outside of the cluster.
  std::optional<std::string> pod_namespace = std::nullopt;

  /// The name of this process's pod: HOSTNAME if it is not given within the cluster.
  std::optional<std::string> pod_name = std::nullopt;

  /// "https://host:port". Within the cluster, it is found by KUBERNETES_SERVICE_HOST and _PORT;
  /// elsewhere, it must be given. That of `kubectl proxy`, "http://127.0.0.1:8001", needs no token.
  std::optional<std::string> api_server = std::nullopt;

  /// A folder with the files token, ca.crt and namespace. Within the cluster: where Kubernetes
  /// mounts that of the pod's service account. Elsewhere: none, and the system's authorities apply.
  std::optional<std::string> service_account_folder = std::nullopt;
};

/// Lists the pods again in each call. The pods of a selector are sorted by name, with numbers as
/// numbers; a pod's address is its own IP address within the cluster, that of its host elsewhere.
/// The task of this process is that of the pod with its name. The token is read again for every
/// request, because Kubernetes replaces it.
///
/// cluster_spec(), and the task of this process, throw kFailedPrecondition if pods are missing or
/// not running, kDeadlineExceeded if that is still so after wait_for_pods, kFailedPrecondition
/// without the rights to list pods, kUnavailable or kDeadlineExceeded if the API does not answer,
/// kDataLoss for an answer that cannot be read. Threads: as ClusterResolver; the environment must
/// not change meanwhile.
class KubernetesClusterResolver : public ClusterResolver {
 public:
  /// Throws kInvalidArgument for impossible options.
  explicit KubernetesClusterResolver(KubernetesClusterResolverOptions options = {});

  ClusterSpec cluster_spec() const override;
  std::string source() const override { return "Kubernetes"; }

 protected:
  std::optional<std::string> own_task_type() const override;
  std::optional<int> own_task_id() const override;
  std::string own_rpc_layer() const override { return options_.rpc_layer; }

 private:
  class Api;
  struct Tasks;

  std::optional<std::string> own_pod_name() const;
  Tasks find_tasks() const;
  Tasks wait_for_tasks() const;
  std::optional<TaskName> own_task() const;

  KubernetesClusterResolverOptions options_;
};

}  // namespace tutti
