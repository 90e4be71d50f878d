// SPDX-License-Identifier: Apache-2.0

#include "tutti/cluster/resolvers/sagemaker.h"

#include <algorithm>

#include "tutti/base/address.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/cluster/internal/checked_json.h"
#include "tutti/cluster/internal/natural_order.h"
#include "tutti/cluster/internal/variables.h"

namespace tutti {
namespace {

constexpr const char* kSageMaker = "SageMaker environment";

struct SageMakerHosts {
  std::vector<std::string> all;  ///< Sorted.
  size_t mine = 0;
};

SageMakerHosts read_hosts() {
  if (!read_env("SM_HOSTS") || !read_env("SM_CURRENT_HOST")) {
    internal::refuse_environment(
        kSageMaker, internal::describe_variables({"SM_HOSTS", "SM_CURRENT_HOST"}),
        "Start the program by a SageMaker training job, or give the cluster in the program.");
  }
  const internal::JsonOrigin origin{.who = message(kSageMaker, ": SM_HOSTS"),
                                    .example = R"(SM_HOSTS='["algo-1", "algo-2"]')"};
  const internal::Json list = internal::parse_json(*read_env("SM_HOSTS"), origin);
  if (!list.is_array() || list.empty()) {
    origin.refuse_value("", list, "a list of at least one host name");
  }
  SageMakerHosts hosts;
  for (const internal::Json& host : list) {
    hosts.all.push_back(internal::read_string(
        origin, internal::append_to_pointer("", std::to_string(hosts.all.size())), host));
  }
  std::sort(hosts.all.begin(), hosts.all.end(), internal::natural_less);
  const auto mine = std::find(hosts.all.begin(), hosts.all.end(), *read_env("SM_CURRENT_HOST"));
  if (mine == hosts.all.end()) {
    internal::refuse_environment(kSageMaker,
                                 internal::describe_variables({"SM_HOSTS", "SM_CURRENT_HOST"}) +
                                     ", but this host is not among the hosts",
                                 "Correct them, or give the cluster in the program.");
  }
  hosts.mine = static_cast<size_t>(mine - hosts.all.begin());
  return hosts;
}

}  // namespace

SageMakerClusterResolver::SageMakerClusterResolver(SageMakerClusterResolverOptions options)
    : options_(std::move(options)) {
  if (options_.port >= 1 && options_.port <= 65535) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      message("SageMakerClusterResolver: port = ", options_.port, ". It must be from 1 to 65535."));
}

ClusterSpec SageMakerClusterResolver::cluster_spec() const {
  std::vector<std::string> workers;
  for (const std::string& host : read_hosts().all) {
    const std::string address = Address{host, options_.port}.to_string();
    try {
      parse_address(address);
    } catch (const Error& error) {
      throw Error(error.code(), message(kSageMaker, ": SM_HOSTS=", in_quotes(*read_env("SM_HOSTS")),
                                        ": ", error.what()));
    }
    workers.push_back(address);
  }
  return ClusterSpec{{"worker", workers}};
}

std::string SageMakerClusterResolver::master(const std::optional<std::string>& task_type,
                                             std::optional<int> task_id,
                                             const std::optional<std::string>& rpc_layer) const {
  if (read_hosts().all.size() == 1) return "";
  return ClusterResolver::master(task_type, task_id, rpc_layer);
}

std::optional<std::string> SageMakerClusterResolver::own_task_type() const {
  return options_.task_type.value_or("worker");
}

std::optional<int> SageMakerClusterResolver::own_task_id() const {
  return options_.task_id ? options_.task_id : static_cast<int>(read_hosts().mine);
}

}  // namespace tutti
