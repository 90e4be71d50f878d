// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/kubernetes.h"

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/cluster/internal/http_client.h"
#include "tutti/cluster/internal/natural_order.h"
#include "tutti/cluster/internal/pod_list.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

using internal::HttpAnswer;
using internal::Pod;

constexpr const char* kKubernetes = "KubernetesClusterResolver";
constexpr const char* kMount = "/var/run/secrets/kubernetes.io/serviceaccount";
constexpr const char* kPodRights =
    "Let the service account of the pod list pods: a Role with resources [\"pods\"] and verbs "
    "[\"list\"], and a RoleBinding (for all namespaces: ClusterRole and ClusterRoleBinding).";

[[noreturn]] void refuse_options(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, message(kKubernetes, ": ", what));
}

std::string api_server_of_pod() {
  const auto host = read_env("KUBERNETES_SERVICE_HOST");
  if (!host || !read_env("KUBERNETES_SERVICE_PORT")) {
    internal::refuse_environment(
        kKubernetes,
        internal::describe_variables({"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"}) +
            ", so this process does not run in a pod",
        "Outside of the cluster, set executable_location to kOffCluster, and api_server.");
  }
  const int port = internal::read_number(kKubernetes, "KUBERNETES_SERVICE_PORT", 1, 65535);
  return "https://" + Address{*host, port}.to_string();
}

// Pods that may still start, or never will.
enum class Readiness { kReady, kNotYet, kNever };

Readiness readiness_of(const Pod& pod, const std::string& ip) {
  if (pod.phase == "Succeeded" || pod.phase == "Failed") return Readiness::kNever;
  if (pod.phase != "Running" || pod.is_being_deleted || ip.empty()) return Readiness::kNotYet;
  return Readiness::kReady;
}

std::string describe_state(const Pod& pod) {
  if (pod.is_being_deleted) {
    return message("pod ", in_quotes(pod.name), " is being deleted; phase: ", in_quotes(pod.phase));
  }
  if (pod.phase == "Running") {
    return message("pod ", in_quotes(pod.name), " has no IP address yet; phase: \"Running\"");
  }
  return message("pod ", in_quotes(pod.name), " is not running; phase: ", in_quotes(pod.phase));
}

}  // namespace

// The requests of one call of the resolver.
class KubernetesClusterResolver::Api {
 public:
  explicit Api(const KubernetesClusterResolverOptions& options)
      : within_(options.executable_location == KubernetesExecutableLocation::kWithinCluster),
        folder_(options.service_account_folder.value_or(within_ ? kMount : "")),
        server_(options.api_server ? *options.api_server : api_server_of_pod()),
        timeout_(options.timeout),
        client_(kKubernetes, {.ca_file = folder_.empty() ? "" : folder_ + "/ca.crt"}) {
    std::string pods_of = options.pod_namespace.value_or("");
    if (!options.pod_namespace) {
      pods_of = folder_.empty() ? "default"
                                : internal::read_token_file(kKubernetes, folder_ + "/namespace");
    }
    scope_ = pods_of.empty() ? "all namespaces" : message("namespace ", in_quotes(pods_of));
    path_ = pods_of.empty()
                ? "/api/v1/pods"
                : message("/api/v1/namespaces/", internal::url_encoded(pods_of), "/pods");
    if (!folder_.empty()) internal::check_url_for_token(kKubernetes, server_);
  }

  const std::string& scope() const { return scope_; }

  // The pods that match, sorted by name.
  std::vector<Pod> list(const std::string& selector) {
    const Deadline deadline = Deadline::after(timeout_);
    constexpr int kAttempts = 3;
    for (int attempt = 1;; ++attempt) {
      std::vector<Pod> pods;
      std::string next;
      do {
        HttpAnswer answer = get(selector, next, deadline);
        // The list has changed so much that its pages no longer belong together.
        if (answer.status == 410 && !next.empty() && attempt < kAttempts) break;
        internal::PodPage page = internal::parse_pod_page(
            kKubernetes,
            internal::body_of_ok(kKubernetes, server_ + path_, std::move(answer), kPodRights));
        std::move(page.pods.begin(), page.pods.end(), std::back_inserter(pods));
        if (page.next.empty()) {
          std::sort(pods.begin(), pods.end(), [](const Pod& left, const Pod& right) {
            return internal::natural_less(left.name, right.name);
          });
          return pods;
        }
        if (pods.size() > size_t{ClusterSpec::kLastIndex}) {
          throw Error(ErrorCode::kDataLoss, message(kKubernetes, ": selector ", in_quotes(selector),
                                                    " matches more than ", ClusterSpec::kLastIndex,
                                                    " pods in ", scope_, '.'));
        }
        next = page.next;
      } while (true);
    }
  }

 private:
  HttpAnswer get(const std::string& selector, const std::string& next, Deadline deadline) {
    std::string url =
        message(server_, path_, "?limit=100&labelSelector=", internal::url_encoded(selector));
    if (!next.empty()) url += "&continue=" + internal::url_encoded(next);
    std::vector<std::string> headers = {"Accept: application/json"};
    if (!folder_.empty()) {
      headers.push_back("Authorization: Bearer " +
                        internal::read_token_file(kKubernetes, folder_ + "/token"));
    }
    return client_.get(url, headers, deadline);
  }

  bool within_;
  std::string folder_;
  std::string server_;
  std::string path_;
  std::string scope_;
  std::chrono::seconds timeout_;
  internal::HttpClient client_;
};

// The addresses of the tasks, and which of them this process is.
struct KubernetesClusterResolver::Tasks {
  ClusterSpec::Jobs addresses;
  std::vector<TaskName> mine;
  std::string problem;    ///< Why the cluster is not complete; empty if it is.
  bool is_final = false;  ///< Waiting does not help.

  void note(const std::string& what, bool final) {
    if (problem.empty() || (final && !is_final)) problem = what;
    is_final = is_final || final;
  }
};

KubernetesClusterResolver::KubernetesClusterResolver(KubernetesClusterResolverOptions options)
    : options_(std::move(options)) {
  if (options_.tf_server_port < 1 || options_.tf_server_port > 65535) {
    refuse_options(
        message("tf_server_port = ", options_.tf_server_port, ". It must be from 1 to 65535."));
  }
  if (options_.job_to_label_mapping.empty()) {
    refuse_options("job_to_label_mapping has no jobs. Name one, and a selector of its pods.");
  }
  for (const auto& [job, selectors] : options_.job_to_label_mapping) {
    // An empty selector would match every pod.
    if (!selectors.empty() && std::count(selectors.begin(), selectors.end(), "") == 0) continue;
    refuse_options(message("job ", in_quotes(job),
                           " has no selector, or an empty one. Write, for example, "
                           "\"job-name=train\"."));
  }
  for (const auto& [job, count] : options_.num_tasks) {
    if (options_.job_to_label_mapping.count(job) == 0 || count < 1) {
      refuse_options(message("num_tasks[", in_quotes(job), "] = ", count,
                             ". It must be 1 or more, for a job of job_to_label_mapping."));
    }
  }
  if (options_.executable_location == KubernetesExecutableLocation::kOffCluster &&
      !options_.api_server) {
    refuse_options(
        "outside of the cluster, api_server must be given: \"https://host:port\", or "
        "\"http://127.0.0.1:8001\" with kubectl proxy.");
  }
}

std::optional<std::string> KubernetesClusterResolver::own_pod_name() const {
  const bool within = options_.executable_location == KubernetesExecutableLocation::kWithinCluster;
  return options_.pod_name || !within ? options_.pod_name : read_env("HOSTNAME");
}

KubernetesClusterResolver::Tasks KubernetesClusterResolver::find_tasks() const {
  const bool within = options_.executable_location == KubernetesExecutableLocation::kWithinCluster;
  const auto pod_name = own_pod_name();
  Api api(options_);
  Tasks tasks;
  for (const auto& [job, selectors] : options_.job_to_label_mapping) {
    std::map<int, std::string>& addresses = tasks.addresses[job];
    std::set<std::pair<std::string, std::string>> known;
    for (const std::string& selector : selectors) {
      for (const Pod& pod : api.list(selector)) {
        if (!known.emplace(pod.pod_namespace, pod.name).second) continue;
        const std::string& ip = within ? pod.pod_ip : pod.host_ip;
        const Readiness readiness = readiness_of(pod, ip);
        if (readiness != Readiness::kReady) {
          tasks.note(describe_state(pod), readiness == Readiness::kNever);
        }
        const int index = static_cast<int>(addresses.size());
        if (pod_name && (pod.name == *pod_name || pod.hostname == *pod_name)) {
          tasks.mine.push_back({job, index});
        }
        const std::string address = Address{ip, options_.tf_server_port}.to_string();
        try {
          if (!ip.empty()) parse_address(address);
        } catch (const Error& error) {
          throw Error(ErrorCode::kDataLoss,
                      message(kKubernetes, ": pod ", in_quotes(pod.name), ": ", error.what()));
        }
        addresses[index] = address;
      }
    }
    const auto wanted = options_.num_tasks.find(job);
    const size_t found = addresses.size();
    const std::string names = joined_with_and(selectors);
    if (found == 0) {
      tasks.note(message("no pod of job ", in_quotes(job), " matches ", in_quotes(names), " in ",
                         api.scope()),
                 false);
    } else if (wanted != options_.num_tasks.end() && found != static_cast<size_t>(wanted->second)) {
      tasks.note(
          message(found, found == 1 ? " pod of job " : " pods of job ", in_quotes(job), " match ",
                  in_quotes(names), " in ", api.scope(), ", but there should be ", wanted->second),
          false);
    }
  }
  return tasks;
}

KubernetesClusterResolver::Tasks KubernetesClusterResolver::wait_for_tasks() const {
  const Deadline deadline = Deadline::after(options_.wait_for_pods);
  auto pause = std::chrono::milliseconds(100);
  while (true) {
    Tasks tasks;
    try {
      tasks = find_tasks();
    } catch (const Error& error) {
      const bool may_pass =
          error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded;
      if (!may_pass || deadline.passed()) throw;
      tasks.problem = error.what();
    }
    if (tasks.problem.empty()) return tasks;
    if (tasks.is_final || deadline.passed()) {
      const bool waited = !tasks.is_final && options_.wait_for_pods.count() > 0;
      throw Error(
          waited ? ErrorCode::kDeadlineExceeded : ErrorCode::kFailedPrecondition,
          message(kKubernetes, ": ", tasks.problem,
                  waited ? message(" after ", options_.wait_for_pods.count(), " s") : "", ". ",
                  tasks.is_final ? "Delete the pods that have ended, or correct the selector."
                                 : "Wait longer for it (wait_for_pods), or look at it: kubectl "
                                   "describe pods."));
    }
    // The API could also announce changes, but only over a connection that stays open.
    std::this_thread::sleep_until(std::min(deadline.when(), Deadline::Clock::now() + pause));
    pause = std::min(pause * 2, std::chrono::milliseconds(2000));
  }
}

ClusterSpec KubernetesClusterResolver::cluster_spec() const {
  return ClusterSpec::sparse(wait_for_tasks().addresses);
}

// Waits as cluster_spec() does: the index of a pod changes while others appear.
std::optional<TaskName> KubernetesClusterResolver::own_task() const {
  if (!own_pod_name()) return std::nullopt;
  const std::vector<TaskName> mine = wait_for_tasks().mine;
  if (mine.size() != 1) return std::nullopt;
  return mine[0];
}

std::optional<std::string> KubernetesClusterResolver::own_task_type() const {
  const auto task = own_task();
  return task ? std::optional(task->job) : std::nullopt;
}

std::optional<int> KubernetesClusterResolver::own_task_id() const {
  const auto task = own_task();
  return task ? std::optional(task->index) : std::nullopt;
}

}  // namespace tutti
