// SPDX-License-Identifier: Apache-2.0
//
// Against a stand-in of the API over TLS, with a folder like that of a service account.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tutti/cluster/internal/pod_list.h"
#include "tutti/cluster/resolve_cluster.h"
#include "tutti/cluster/resolvers/kubernetes.h"
#include "tutti/cluster/resolvers/simple.h"
#include "tutti/cluster/resolvers/union.h"

#include "tests/support/expect_error.h"
#include "tests/support/http_standin.h"
#include "tests/support/scoped_environment.h"

namespace kubernetes_resolver_test {

using namespace tutti;
using namespace std::chrono_literals;
using nlohmann::json;
using test::HttpStandIn;
using test::ScopedEnvironment;
using test::TempFolder;

const std::string kPods = "/api/v1/namespaces/ml/pods";

json pod(const std::string& name, const std::string& ip, const std::string& phase = "Running") {
  return {{"metadata", {{"name", name}, {"namespace", "ml"}}},
          {"spec", {{"containers", json::array()}}},
          {"status", {{"phase", phase}, {"podIP", ip}, {"hostIP", "192.168.0.1"}}}};
}

json page(const std::vector<json>& pods, const std::string& next = "") {
  return {{"kind", "PodList"}, {"metadata", {{"continue", next}}}, {"items", pods}};
}

json route(const json& answer, const json& more = json::object()) {
  json out = {{"path", kPods}, {"method", "GET"}, {"token", "first"}, {"json", answer}};
  out.update(more);
  return out;
}

/// The API, and a pod that may use it.
class InPod {
 public:
  explicit InPod(const json& routes) : server(routes, HttpStandIn::Scheme::kHttps) {
    test::write_file(folder.path("token"), "first\n");
    test::write_file(folder.path("namespace"), "ml");
    test::write_file(folder.path("ca.crt"), test::read_file(server.ca_file()));
    environment.set("KUBERNETES_SERVICE_HOST", server.host());
    environment.set("KUBERNETES_SERVICE_PORT", server.port());
  }

  KubernetesClusterResolverOptions options() const {
    return {.job_to_label_mapping = {{"worker", {"job-name=train"}}},
            .service_account_folder = folder.path("")};
  }

  HttpStandIn server;
  TempFolder folder;
  ScopedEnvironment environment;
};

TEST(KubernetesClusterResolver, ListsTheRunningPods) {
  InPod in(json::array({route(page({pod("train-10-x", "10.0.0.3"), pod("train-2-y", "10.0.0.2"),
                                    pod("train-0-z", "fd00::7")}),
                              {{"query", {{"labelSelector", "job-name=train"}}}})}));
  const auto resolver = std::make_shared<KubernetesClusterResolver>(in.options());
  const ClusterSpec spec{{"worker", {"[fd00::7]:8470", "10.0.0.2:8470", "10.0.0.3:8470"}}};
  EXPECT_EQ(resolver->cluster_spec(), spec) << "numbers of names count as numbers";
  EXPECT_EQ(resolver->task_id(), std::nullopt) << "HOSTNAME is not set";
  EXPECT_EQ(resolver->master(), "");
  EXPECT_EQ(resolver->master("worker", 0), "grpc://[fd00::7]:8470");
  in.environment.set("HOSTNAME", "train-2-y");
  EXPECT_EQ(resolver->task_type(), "worker");
  EXPECT_EQ(resolver->task_id(), 1);
  EXPECT_EQ(cluster_banner(*resolve_cluster(resolver), 1),
            "3 workers x 1 replica, I am worker 1 (10.0.0.2:8470), from Kubernetes");
  EXPECT_EQ(in.server.requests()[0]["query"]["labelSelector"], "job-name=train");
  const UnionResolver merged(
      {resolver, std::make_shared<SimpleClusterResolver>(ClusterSpec{{"ps", {"p:1"}}})});
  EXPECT_EQ(merged.cluster_spec().jobs(), (std::vector<std::string>{"ps", "worker"}));
  EXPECT_EQ(merged.task_id(), 1);
}

TEST(KubernetesClusterResolver, KnowsItsPodByTheHostNameOfAnIndexedJob) {
  json third = pod("train-1-c7x2p", "10.0.0.3");
  third["spec"]["hostname"] = "train-1";
  InPod in(json::array({route(page({pod("train-0-aaaaa", "10.0.0.2"), third}))}));
  in.environment.set("HOSTNAME", "train-1");
  EXPECT_EQ(KubernetesClusterResolver(in.options()).task_id(), 1);
  auto options = in.options();
  options.pod_name = "train-0-aaaaa";
  EXPECT_EQ(KubernetesClusterResolver(options).task_id(), 0);
}

TEST(KubernetesClusterResolver, FollowsPagesAndConcatenatesSelectors) {
  InPod in(json::array(
      {route(page({pod("b", "10.0.0.5")}), {{"query", {{"labelSelector", "late"}}}}),
       route(page({pod("p", "10.0.0.9")}), {{"query", {{"labelSelector", "role in (ps, x)"}}}}),
       route(page({pod("d", "10.0.0.4")}), {{"query", {{"continue", "t/2="}}}}),
       route(page({pod("c", "10.0.0.3")}, "t/2="), {{"query", {{"continue", "t1"}}}}),
       route(page({pod("e", "10.0.0.2"), pod("b", "10.0.0.5")}, "t1"))}));
  auto options = in.options();
  options.job_to_label_mapping = {{"worker", {"first", "late"}}, {"ps", {"role in (ps, x)"}}};
  options.tf_server_port = 5000;
  EXPECT_EQ(KubernetesClusterResolver(options).cluster_spec(),
            (ClusterSpec{
                {"ps", {"10.0.0.9:5000"}},
                {"worker", {"10.0.0.5:5000", "10.0.0.3:5000", "10.0.0.4:5000", "10.0.0.2:5000"}}}))
      << "a pod that two selectors match counts once";
}

TEST(KubernetesClusterResolver, BeginsAgainWhenPagesExpire) {
  const json expired = {{"query", {{"continue", "old"}}}, {"status", 410}};
  InPod in(json::array({route(json::object(), expired),
                        route(page({pod("a", "10.0.0.1")}, "old"), {{"times", 1}}),
                        route(page({pod("a", "10.0.0.2")}))}));
  EXPECT_EQ(KubernetesClusterResolver(in.options()).cluster_spec(),
            (ClusterSpec{{"worker", {"10.0.0.2:8470"}}}));
  InPod always(json::array({route(json::object(), expired), route(page({}, "old"))}));
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(always.options()).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "status 410");
  EXPECT_EQ(always.server.requests().size(), 6u);
}

TEST(KubernetesClusterResolver, ReadsTheTokenForEachRequest) {
  InPod in(json::array({route(page({pod("a", "10.0.0.1")}))}));
  const KubernetesClusterResolver resolver(in.options());
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 1);
  test::write_file(in.folder.path("token"), "second");
  EXPECT_TUTTI_ERROR(resolver.cluster_spec(), ErrorCode::kFailedPrecondition,
                     "KubernetesClusterResolver: https://127.0.0.1:", "status 401", "Unauthorized",
                     "Let the service account of the pod list pods");
  test::write_file(in.folder.path("token"), "first");
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 1);
}

TEST(KubernetesClusterResolver, RefusesPodsThatDoNotRun) {
  const struct {
    json other;
    const char* part;
  } cases[] = {
      {pod("b", "", "Pending"), "pod \"b\" is not running; phase: \"Pending\". Wait longer"},
      {pod("b", "10.0.0.2", "Failed"), "phase: \"Failed\". Delete the pods that have ended"},
      {pod("b", "10.0.0.2", "Succeeded"), "phase: \"Succeeded\""},
      {pod("b", ""), "pod \"b\" has no IP address yet"},
      {{{"metadata", {{"name", "b"}, {"deletionTimestamp", "2030-01-01T00:00:00Z"}}},
        {"status", {{"phase", "Running"}, {"podIP", "10.0.0.2"}}}},
       "pod \"b\" is being deleted"},
  };
  json routes = json::array();  // one answer after the other
  for (const auto& wrong : cases) {
    routes.push_back(route(page({pod("a", "10.0.0.1"), wrong.other}), {{"times", 1}}));
  }
  routes.push_back(route(page({})));
  InPod in(routes);
  for (const auto& wrong : cases) {
    EXPECT_TUTTI_ERROR(KubernetesClusterResolver(in.options()).cluster_spec(),
                       ErrorCode::kFailedPrecondition, "KubernetesClusterResolver: ", wrong.part);
  }
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(in.options()).cluster_spec(),
                     ErrorCode::kFailedPrecondition,
                     "no pod of job \"worker\" matches \"job-name=train\" in namespace \"ml\"");
}

TEST(KubernetesClusterResolver, WaitsForPods) {
  InPod in(
      json::array({route(page({pod("a", "10.0.0.1")}), {{"times", 1}}),
                   route(json::object(), {{"times", 1}, {"status", 503}}),
                   route(page({pod("a", "10.0.0.1"), pod("b", "", "Pending")}), {{"times", 1}}),
                   route(page({pod("a", "10.0.0.1"), pod("b", "10.0.0.2")}))}));
  auto options = in.options();
  options.num_tasks = {{"worker", 2}};
  options.wait_for_pods = 30s;
  EXPECT_EQ(KubernetesClusterResolver(options).cluster_spec(),
            (ClusterSpec{{"worker", {"10.0.0.1:8470", "10.0.0.2:8470"}}}));
  EXPECT_EQ(in.server.requests().size(), 4u);

  options.num_tasks = {{"worker", 3}};
  options.wait_for_pods = 0s;
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(options).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "2 pods of job \"worker\" match",
                     "but there should be 3");
  options.wait_for_pods = 1s;
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(options).cluster_spec(),
                     ErrorCode::kDeadlineExceeded, "there should be 3 after 1 s");
  // A pod that has ended does not run again.
  InPod ended(json::array({route(page({pod("a", "10.0.0.1", "Failed")}))}));
  options = ended.options();
  options.wait_for_pods = 600s;
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(options).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "\"Failed\"");
}

TEST(KubernetesClusterResolver, KnowsItsTaskOnlyWhenAllPodsRun) {
  InPod in(json::array({route(page({pod("b", "10.0.0.2")}), {{"times", 1}}),
                        route(page({pod("a", "10.0.0.1"), pod("b", "10.0.0.2")}))}));
  in.environment.set("HOSTNAME", "b");
  auto options = in.options();
  options.num_tasks = {{"worker", 2}};
  options.wait_for_pods = 30s;
  EXPECT_EQ(KubernetesClusterResolver(options).task_id(), 1);
}

TEST(KubernetesClusterResolver, DoesNotWaitForeverForTheApi) {
  InPod in(json::array({{{"hang", true}}}));
  auto options = in.options();
  options.timeout = 1s;
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(options).cluster_spec(),
                     ErrorCode::kDeadlineExceeded, "KubernetesClusterResolver: GET https://");
}

TEST(KubernetesClusterResolver, TrustsOnlyTheAuthorityOfTheAccount) {
  InPod in(json::array({route(page({pod("a", "10.0.0.1")}))}));
  const InPod other(json::array({route(page({}))}));
  test::write_file(in.folder.path("ca.crt"), test::read_file(other.server.ca_file()));
  in.environment.set("KUBERNETES_SERVICE_PORT", in.server.port());
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(in.options()).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "certificate", "/ca.crt");
  EXPECT_TRUE(in.server.requests().empty()) << "no token was sent";
}

TEST(KubernetesClusterResolver, RefusesAnswersThatItCannotRead) {
  const struct {
    json more;
    const char* part;
  } cases[] = {
      {{{"text", "<html>"}}, "the list of pods: invalid JSON at line 1"},
      {{{"json", json::array()}}, "expected an object"},
      {{{"json", json::object()}}, "there are no \"items\""},
      {{{"json", {{"items", "x"}}}}, "at \"/items\": expected a list of pods"},
      {{{"json", {{"items", {1}}}}}, "at \"/items/0\""},
      {{{"json", {{"items", json::array({json::object()})}}}},
       "at \"/items/0\": the pod has no name"},
      {{{"json", page({pod("a", "10.0.0.1/24")})}}, "pod \"a\": address"},
      {{{"size", 17 << 20}}, "larger than 16777216 bytes"},
  };
  json routes = json::array();  // one answer after the other
  for (const auto& wrong : cases) {
    routes.push_back({{"path", kPods}, {"times", 1}});
    routes.back().update(wrong.more);
  }
  InPod in(routes);
  for (const auto& wrong : cases) {
    EXPECT_TUTTI_ERROR(KubernetesClusterResolver(in.options()).cluster_spec(), ErrorCode::kDataLoss,
                       "KubernetesClusterResolver: ", wrong.part);
  }
}

TEST(KubernetesClusterResolver, RunsOutsideOfTheCluster) {
  const ScopedEnvironment environment{{"HOSTNAME", "a"}};
  const HttpStandIn proxy(json::array(
      {{{"path", "/api/v1/pods"}, {"json", page({pod("a", "10.0.0.1"), pod("b", "10.0.0.2")})}},
       {{"path", "/api/v1/namespaces/default/pods"}, {"json", page({pod("a", "10.0.0.1")})}}}));
  KubernetesClusterResolverOptions options = {
      .executable_location = KubernetesExecutableLocation::kOffCluster, .api_server = proxy.url()};
  EXPECT_EQ(KubernetesClusterResolver(options).cluster_spec(),
            (ClusterSpec{{"worker", {"192.168.0.1:8470"}}}))
      << "from outside, only hosts can be reached";
  EXPECT_EQ(KubernetesClusterResolver(options).task_id(), std::nullopt);
  EXPECT_EQ(proxy.requests()[0]["authorization"], "");
  options.pod_namespace = "";
  EXPECT_EQ(KubernetesClusterResolver(options).cluster_spec().num_tasks("worker"), 2);
  options.api_server = std::nullopt;
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver{options}, ErrorCode::kInvalidArgument,
                     "api_server must be given");
  options.api_server = "http://10.0.0.1:8001";
  options.service_account_folder = "/tmp";
  options.pod_namespace = "ml";
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(options).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "neither https nor on this machine");
}

TEST(KubernetesClusterResolver, MustRunInAPod) {
  ScopedEnvironment environment;
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver().cluster_spec(), ErrorCode::kFailedPrecondition,
                     "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set",
                     "kOffCluster");
  environment.set("KUBERNETES_SERVICE_HOST", "fd00::1");
  environment.set("KUBERNETES_SERVICE_PORT", "443");
  KubernetesClusterResolverOptions options{.service_account_folder = "/nowhere"};
  EXPECT_TUTTI_ERROR(KubernetesClusterResolver(options).cluster_spec(),
                     ErrorCode::kFailedPrecondition, "/nowhere/namespace");
}

TEST(KubernetesClusterResolver, RefusesOptionsThatCannotBe) {
  const auto expect = [](const KubernetesClusterResolverOptions& options, const char* part) {
    EXPECT_TUTTI_ERROR(KubernetesClusterResolver{options}, ErrorCode::kInvalidArgument,
                       "KubernetesClusterResolver: ", part);
  };
  expect({.job_to_label_mapping = {}}, "no jobs");
  expect({.job_to_label_mapping = {{"worker", {}}}}, "job \"worker\" has no selector");
  expect({.job_to_label_mapping = {{"worker", {"a", ""}}}}, "or an empty one");
  expect({.tf_server_port = 0}, "tf_server_port = 0");
  expect({.num_tasks = {{"ps", 1}}}, "num_tasks[\"ps\"] = 1");
  expect({.num_tasks = {{"worker", 0}}}, "num_tasks[\"worker\"] = 0");
}

}  // namespace kubernetes_resolver_test
