// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/clusters.md.

#include <memory>
#include <string>

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

}  // namespace clusters_docs_test
