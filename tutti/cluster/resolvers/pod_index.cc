// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/pod_index.h"

#include <charconv>
#include <map>

#include "tutti/base/address.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

constexpr const char* kPods = "Kubernetes pod environment";
constexpr int kDefaultPort = 8470;

// HOSTNAME "train-3.svc.cluster.local" is "train" and 3.
struct PodName {
  std::string base;
  int index = 0;
};

std::optional<PodName> read_pod_name() {
  const std::string hostname = read_env("HOSTNAME").value_or("");
  const std::string first = hostname.substr(0, hostname.find('.'));
  const size_t dash = first.rfind('-');
  if (dash == std::string::npos || dash == 0) return std::nullopt;
  PodName name{first.substr(0, dash)};
  const char* const end = first.data() + first.size();
  const auto [stop, error] = std::from_chars(first.data() + dash + 1, end, name.index);
  if (error != std::errc() || stop != end || name.index < 0) return std::nullopt;
  return name;
}

PodName own_pod_name() {
  const auto name = read_pod_name();
  const bool is_job = read_env("JOB_COMPLETION_INDEX").has_value();
  const int index =
      is_job ? internal::read_number(kPods, "JOB_COMPLETION_INDEX", 0, ClusterSpec::kLastIndex) : 0;
  if (!name || (is_job && name->index != index)) {
    internal::refuse_environment(
        kPods,
        internal::describe_variables({"JOB_COMPLETION_INDEX", "HOSTNAME"}) +
            ", but the host name of a numbered pod is <name>-<index>",
        "Leave \"hostname\" out of the pod's template, or give the cluster in the program.");
  }
  return *name;
}

}  // namespace

RankEnvironment PodIndexClusterResolver::ranks() const {
  if (!options_.num_pods && !read_env("TUTTI_POD_COUNT")) {
    internal::refuse_environment(
        kPods,
        internal::describe_variables(
            {"JOB_COMPLETION_INDEX", "HOSTNAME", "TUTTI_POD_COUNT", "TUTTI_POD_SERVICE"}) +
            ", so the number of pods is unknown",
        "Set TUTTI_POD_COUNT to it, and TUTTI_POD_SERVICE to their headless Service. "
        "TUTTI_POD_COUNT=1 lets each pod run alone.");
  }
  RankEnvironment ranks;
  ranks.size = options_.num_pods.value_or(0);
  if (!options_.num_pods) {
    ranks.size = internal::read_number(kPods, "TUTTI_POD_COUNT", 1, ClusterSpec::kLastIndex);
  } else if (ranks.size < 1 || ranks.size > ClusterSpec::kLastIndex) {
    throw Error(
        ErrorCode::kInvalidArgument,
        message("PodIndexClusterResolver: num_pods = ", ranks.size, ". It must be 1 or more."));
  }
  if (ranks.size == 1) return ranks;
  ranks.rank = own_pod_name().index;
  if (ranks.rank >= ranks.size) {
    internal::refuse_environment(
        kPods,
        message(internal::describe_variables({"JOB_COMPLETION_INDEX", "HOSTNAME"}),
                ", but there are ", ranks.size, " pods, from 0 to ", ranks.size - 1),
        "Set TUTTI_POD_COUNT to the Job's completions or the StatefulSet's replicas.");
  }
  return ranks;
}

std::string PodIndexClusterResolver::address_of(int index) const {
  const auto service = options_.service ? options_.service : read_env("TUTTI_POD_SERVICE");
  if (!service) {
    internal::refuse_environment(
        kPods,
        internal::describe_variables({"TUTTI_POD_COUNT", "HOSTNAME", "TUTTI_POD_SERVICE"}) +
            ", so the pods cannot find each other",
        "Set TUTTI_POD_SERVICE to the headless Service that the pods name as their subdomain "
        "(in a StatefulSet: serviceName).");
  }
  int port = options_.port.value_or(kDefaultPort);
  if (!options_.port && read_env("TUTTI_POD_PORT")) {
    port = internal::read_number(kPods, "TUTTI_POD_PORT", 1, 65535);
  }
  const std::string text = message(own_pod_name().base, '-', index, '.', *service, ':', port);
  try {
    return parse_address(text).to_string();
  } catch (const Error& error) {
    throw Error(error.code(), message(kPods, ": ", error.what()));
  }
}

ClusterSpec PodIndexClusterResolver::cluster_spec() const {
  const int size = ranks().size;
  if (size == 1) return ClusterSpec{{"worker", {""}}};
  std::map<int, std::string> workers;
  for (int i = 0; i < size; ++i) workers.emplace_hint(workers.end(), i, address_of(i));
  return ClusterSpec::sparse({{"worker", std::move(workers)}});
}

std::string PodIndexClusterResolver::rendezvous_address() const {
  return ranks().size == 1 ? "" : address_of(0);
}

std::string PodIndexClusterResolver::job_id() const {
  if (ranks().size == 1) return "";
  return message("pods ", own_pod_name().base, '.',
                 options_.service ? *options_.service : read_env("TUTTI_POD_SERVICE").value_or(""));
}

}  // namespace tutti
