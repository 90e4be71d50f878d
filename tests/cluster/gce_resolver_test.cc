// SPDX-License-Identifier: Apache-2.0
//
// Against stand-ins of the API and of the metadata server.

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/cluster/resolve_cluster.h"
#include "tutti/cluster/resolvers/gce.h"

#include "tests/support/expect_error.h"
#include "tests/support/http_standin.h"
#include "tests/support/scoped_environment.h"

namespace gce_resolver_test {

using namespace tutti;
using namespace std::chrono_literals;
using nlohmann::json;
using test::HttpStandIn;
using test::ScopedEnvironment;

const std::string kZone = "/compute/v1/projects/my-project/zones/europe-west4-a";
const std::string kList = kZone + "/instanceGroups/trainers/listInstances";
const std::string kMetadata = "/computeMetadata/v1/instance/";

json machines(const std::vector<std::string>& names, const std::string& next = "") {
  json out = {{"items", json::array()}};
  for (const std::string& name : names) {
    out["items"].push_back(
        {{"instance", "https://www.googleapis.com" + kZone + "/instances/" + name},
         {"status", "RUNNING"}});
  }
  if (!next.empty()) out["nextPageToken"] = next;
  return out;
}

json list_route(const json& answer, const json& more = json::object()) {
  json out = {{"path", kList},
              {"method", "POST"},
              {"token", "ya29"},
              {"body", {{"instanceState", "RUNNING"}}},
              {"json", answer}};
  out.update(more);
  return out;
}

json machine_route(const std::string& name, const json& network) {
  return {{"path", kZone + "/instances/" + name},
          {"method", "GET"},
          {"token", "ya29"},
          {"json", {{"networkInterfaces", {network}}}}};
}

json metadata_routes(const std::string& ip) {
  const json header = {{"Metadata-Flavor", "Google"}};
  return json::array(
      {{{"path", kMetadata + "service-accounts/default/token"},
        {"header", header},
        {"json", {{"access_token", "ya29"}, {"expires_in", 3000}}}},
       {{"path", kMetadata + "network-interfaces/0/ip"}, {"header", header}, {"text", ip}}});
}

/// Options for both stand-ins; the API speaks TLS.
GCEClusterResolverOptions options_for(const HttpStandIn& api, const HttpStandIn& metadata) {
  return {.project = "my-project",
          .zone = "europe-west4-a",
          .instance_group = "trainers",
          .port = 8470,
          .api_server = api.url(),
          .ca_file = api.ca_file(),
          .metadata_server = metadata.host() + ":" + metadata.port()};
}

TEST(GCEClusterResolver, ListsTheRunningMachinesPageByPage) {
  const HttpStandIn api(
      json::array({list_route(machines({"c"}), {{"query", {{"pageToken", "p 2"}}}}),
                   list_route(machines({"a", "b"}, "p 2")),
                   machine_route("a", {{"networkIP", "10.0.0.10"}}),
                   machine_route("b", {{"networkIP", "10.0.0.9"}}),
                   machine_route("c", {{"ipv6Address", "fd20::3"}})}),
      HttpStandIn::Scheme::kHttps);
  const HttpStandIn metadata(metadata_routes("10.0.0.10"));
  const ScopedEnvironment environment;
  const auto resolver = std::make_shared<GCEClusterResolver>(options_for(api, metadata));
  EXPECT_EQ(resolver->cluster_spec(),
            (ClusterSpec{{"worker", {"10.0.0.9:8470", "10.0.0.10:8470", "[fd20::3]:8470"}}}));
  EXPECT_EQ(resolver->task_type(), "worker");
  EXPECT_EQ(resolver->task_id(), 1) << "found by the address of this machine";
  EXPECT_EQ(resolver->master(), "grpc://10.0.0.10:8470");
  EXPECT_EQ(resolver->master("worker", 0), "grpc://10.0.0.9:8470");
  EXPECT_EQ(resolver->master("worker", 2, ""), "[fd20::3]:8470");
  EXPECT_EQ(cluster_banner(*resolve_cluster(resolver), 1),
            "3 workers x 1 replica, I am worker 1 (10.0.0.10:8470), from Compute Engine");
}

TEST(GCEClusterResolver, TakesItsTaskAndTokenFromOptions) {
  const HttpStandIn api(
      json::array({list_route(machines({"a"})), machine_route("a", {{"networkIP", "10.0.0.10"}})}),
      HttpStandIn::Scheme::kHttps);
  const HttpStandIn metadata(metadata_routes("10.9.9.9"));
  ScopedEnvironment environment;
  GCEClusterResolverOptions options = options_for(api, metadata);
  EXPECT_EQ(GCEClusterResolver(options).task_id(), std::nullopt) << "not in the group";
  options.task_id = 0;
  options.task_type = "ps";
  options.metadata_server = std::nullopt;
  environment.set("GCE_METADATA_HOST", "127.0.0.1:" + metadata.port());
  EXPECT_EQ(GCEClusterResolver(options).task_id(), 0);
  EXPECT_EQ(GCEClusterResolver(options).cluster_spec(), (ClusterSpec{{"ps", {"10.0.0.10:8470"}}}));
  options.task_id = std::nullopt;
  options.access_token = "ya29";
  options.metadata_server = "127.0.0.1:9";
  EXPECT_EQ(GCEClusterResolver(options).cluster_spec().num_tasks("ps"), 1);
  EXPECT_EQ(GCEClusterResolver(options).task_id(), std::nullopt);
  options.access_token = "other";
  EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), ErrorCode::kFailedPrecondition,
                     "GCEClusterResolver: https://127.0.0.1:", "status 401", "Compute Viewer");
  options.api_server = "http://10.0.0.1";
  EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), ErrorCode::kFailedPrecondition,
                     "neither https nor on this machine");
}

TEST(GCEClusterResolver, SaysWhatIsWrongWithTheGroup) {
  const ScopedEnvironment environment;
  const HttpStandIn metadata(metadata_routes("10.0.0.1"));
  const struct {
    json list;
    ErrorCode code;
    const char* part;
  } cases[] = {
      {json::object(), ErrorCode::kFailedPrecondition,
       "no machine of instance group \"trainers\" (project my-project, zone europe-west4-a)"},
      {{{"items", "x"}}, ErrorCode::kDataLoss, "at \"/items\": expected a list"},
      {{{"items", json::array({json::object()})}},
       ErrorCode::kDataLoss,
       "at \"/items/0\": the machine has no name"},
      {machines({"a"}), ErrorCode::kDataLoss, "machine \"a\" has no internal IP address"},
      {machines({"b"}), ErrorCode::kDataLoss, "machine \"b\" has no network interface"},
      {machines({"c"}), ErrorCode::kDataLoss, "10.0.0.1 x:8470"},
      {machines({"d"}), ErrorCode::kNotFound, "instances/d?fields=networkInterfaces answered with"},
  };
  json routes = json::array();  // one list after the other
  for (const auto& wrong : cases) routes.push_back(list_route(wrong.list, {{"times", 1}}));
  routes.push_back({{"path", kList}, {"text", "{"}, {"times", 1}});
  routes.push_back({{"path", kList}, {"hang", true}});
  routes.push_back(machine_route("a", json::object()));
  routes.push_back({{"path", kZone + "/instances/b"}, {"json", json::object()}});
  routes.push_back(machine_route("c", {{"networkIP", "10.0.0.1 x"}}));
  const HttpStandIn api(routes, HttpStandIn::Scheme::kHttps);
  GCEClusterResolverOptions options = options_for(api, metadata);
  for (const auto& wrong : cases) {
    EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), wrong.code,
                       "GCEClusterResolver: ", wrong.part);
  }
  EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), ErrorCode::kDataLoss,
                     "invalid JSON");
  options.timeout = 1s;
  EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), ErrorCode::kDeadlineExceeded,
                     "GCEClusterResolver: POST https://");
}

TEST(GCEClusterResolver, NeedsTheMetadataServer) {
  const ScopedEnvironment environment;
  const HttpStandIn api(json::array({list_route(machines({}))}), HttpStandIn::Scheme::kHttps);
  const HttpStandIn metadata(json::array({{{"json", {{"expires_in", 1}}}}}));
  GCEClusterResolverOptions options = options_for(api, metadata);
  EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), ErrorCode::kDataLoss,
                     "there is no \"access_token\"");
  options.metadata_server = "127.0.0.1:9";
  EXPECT_TUTTI_ERROR(GCEClusterResolver(options).cluster_spec(), ErrorCode::kUnavailable,
                     "http://127.0.0.1:9/computeMetadata/v1/instance/service-accounts");
  EXPECT_TRUE(api.requests().empty());
}

TEST(GCEClusterResolver, RefusesOptionsThatCannotBe) {
  const auto expect = [](const GCEClusterResolverOptions& options, const char* part) {
    EXPECT_TUTTI_ERROR(GCEClusterResolver{options}, ErrorCode::kInvalidArgument,
                       "GCEClusterResolver: ", part);
  };
  expect({}, "project = \"\"");
  expect({.project = "p"}, "zone = \"\"");
  expect({.project = "p", .zone = "z"}, "instance_group = \"\"");
  expect({.project = "p/../q", .zone = "z", .instance_group = "g"}, "project = \"p/../q\"");
  expect({.project = "p", .zone = "z", .instance_group = "g"}, "port = 0");
}

}  // namespace gce_resolver_test
