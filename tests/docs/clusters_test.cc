// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/clusters.md.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/tutti.h"

#include "tests/support/scoped_environment.h"

namespace clusters_docs_test {

TEST(Clusters, FoundInTheEnvironment) {
  const tutti::test::ScopedEnvironment environment{
      {"TF_CONFIG", R"({"cluster": {"worker": ["hostA:4321", "hostB:4321"]},
                        "task": {"type": "worker", "index": 1}})"}};
  // [snippet resolve]
  std::shared_ptr<tutti::ClusterResolver> cluster = tutti::resolve_cluster();
  tutti::log(tutti::LogLevel::kInfo, tutti::cluster_banner(*cluster, /*replicas_per_worker=*/2));

  tutti::ClusterSpec spec = cluster->cluster_spec();
  int rank = tutti::id_in_cluster(spec, cluster->task_type(), cluster->task_id());  // 1
  int workers = tutti::worker_count(spec);                                          // 2
  // [/snippet]
  EXPECT_EQ(rank, 1);
  EXPECT_EQ(workers, 2);
  EXPECT_EQ(tutti::cluster_banner(*cluster, 2),
            "2 workers x 2 replicas, I am worker 1 (hostB:4321), from TF_CONFIG");
}

TEST(Clusters, SpelledOut) {
  const tutti::test::ScopedEnvironment environment{{"TF_CONFIG", "anything"}};
  const int my_index = 0;
  // [snippet explicit]
  auto cluster = tutti::resolve_cluster(std::make_shared<tutti::SimpleClusterResolver>(
      tutti::ClusterSpec{{"worker", {"hostA:4321", "hostB:4321"}}},
      tutti::SimpleClusterResolverOptions{.task_type = "worker", .task_id = my_index}));
  // [/snippet]
  EXPECT_EQ(tutti::cluster_banner(*cluster, 1),
            "2 workers x 1 replica, I am worker 0 (hostA:4321), from an explicit cluster; "
            "TF_CONFIG is ignored");
}

// [snippet own]
class FileOfHosts : public tutti::ClusterResolver {
 public:
  explicit FileOfHosts(std::string json) : json_(std::move(json)) {}

  tutti::ClusterSpec cluster_spec() const override {
    return tutti::ClusterSpec::from_json(json_);  // {"worker": ["hostA:4321", ...]}
  }
  std::string source() const override { return "the list of hosts"; }

 private:
  std::string json_;
};
// [/snippet]

TEST(Clusters, OnesOwnResolver) {
  const tutti::test::ScopedEnvironment environment;
  const auto cluster = std::make_shared<FileOfHosts>(R"({"worker": ["hostA:1", "hostB:1"]})");
  cluster->set_task_type("worker");
  cluster->set_task_id(1);
  EXPECT_EQ(tutti::cluster_banner(*tutti::resolve_cluster(cluster), 1),
            "2 workers x 1 replica, I am worker 1 (hostB:1), from the list of hosts");
}

TEST(Clusters, OfASlurmStep) {
  const tutti::test::ScopedEnvironment environment{{"SLURM_PROCID", "2"},
                                                   {"SLURM_STEP_NUM_TASKS", "4"},
                                                   {"SLURM_STEP_NODELIST", "node[01-02]"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                                   {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}};
  // [snippet slurm]
  auto cluster = std::make_shared<tutti::SlurmClusterResolver>(
      tutti::SlurmClusterResolverOptions{.jobs = {{"ps", 1}, {"worker", 3}}, .port_base = 5000});

  std::vector<std::string> devices;  // this task's share of its node, for the strategy
  for (int gpu : cluster->gpus()) devices.push_back("GPU:" + std::to_string(gpu));
  // [/snippet]
  EXPECT_EQ(cluster->master(), "grpc://node02:5000");
  EXPECT_EQ(devices, (std::vector<std::string>{"GPU:0", "GPU:1"}));
}

TEST(Clusters, OfPods) {
  // [snippet kubernetes]
  auto cluster =
      std::make_shared<tutti::KubernetesClusterResolver>(tutti::KubernetesClusterResolverOptions{
          .job_to_label_mapping = {{"worker", {"job-name=train"}}},
          .num_tasks = {{"worker", 4}},
          .wait_for_pods = std::chrono::minutes(5)});
  // [/snippet]
  EXPECT_EQ(cluster->source(), "Kubernetes");
}

TEST(Clusters, OfMachines) {
  // [snippet gce]
  auto workers = std::make_shared<tutti::GCEClusterResolver>(
      tutti::GCEClusterResolverOptions{.project = "my-project",
                                       .zone = "europe-west4-a",
                                       .instance_group = "trainers",
                                       .port = 8470});
  // [/snippet]
  EXPECT_EQ(workers->task_type(), "worker");
}

TEST(Clusters, Merged) {
  auto workers = std::make_shared<tutti::SimpleClusterResolver>(
      tutti::ClusterSpec{{"worker", {"a:1", "b:1"}}});
  auto servers =
      std::make_shared<tutti::SimpleClusterResolver>(tutti::ClusterSpec{{"ps", {"c:1"}}});
  // [snippet union]
  auto cluster = std::make_shared<tutti::UnionResolver>(
      std::vector<std::shared_ptr<const tutti::ClusterResolver>>{workers, servers},
      tutti::UnionResolverOptions{.task_type = "worker", .task_id = 0});
  // [/snippet]
  EXPECT_EQ(cluster->cluster_spec(),
            (tutti::ClusterSpec{{"worker", {"a:1", "b:1"}}, {"ps", {"c:1"}}}));
  EXPECT_EQ(cluster->task_id(), 0);
}

TEST(Clusters, AsPlainStructs) {
  tutti::ClusterSpec spec{{"worker", {"hostA:4321", "hostB:4321"}}};
  // [snippet def]
  tutti::ServerDef server{.cluster = spec.as_cluster_def(), .job_name = "worker", .task_index = 1};
  server.cluster_device_filters.set_device_filters("worker", 1, {"/job:ps"});

  std::string text = server.to_json();
  tutti::ServerDef same = tutti::ServerDef::from_json(text);
  tutti::ClusterSpec cluster(same.cluster);
  // [/snippet]
  EXPECT_EQ(same, server);
  EXPECT_EQ(cluster, spec);
}

}  // namespace clusters_docs_test
