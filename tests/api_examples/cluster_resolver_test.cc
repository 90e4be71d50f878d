// SPDX-License-Identifier: Apache-2.0
//
// The examples of task_type and task_id in the TensorFlow documents that this library follows.

#include <string>

#include <gtest/gtest.h>

#include "tutti/cluster/resolvers/simple.h"

namespace tutti::api_examples_cluster_resolver_test {

TEST(ApiExamples, ATaskRunsWhatOnlyItsIdRuns) {
  const ClusterSpec cluster_spec{
      {"ps", {"localhost:2222", "localhost:2223"}},
      {"worker", {"localhost:2224", "localhost:2225", "localhost:2226"}}};
  const SimpleClusterResolver cluster_resolver(cluster_spec, {.task_type = "worker", .task_id = 0});
  std::string block;
  if (cluster_resolver.task_type() == "worker" && cluster_resolver.task_id() == 0) {
    block = "only on worker 0";
  } else {
    block = "on other ids";
  }
  EXPECT_EQ(block, "only on worker 0");
}

TEST(ApiExamples, ATaskRunsWhatItsTypeRuns) {
  const ClusterSpec cluster_spec{
      {"ps", {"localhost:2222", "localhost:2223"}},
      {"worker", {"localhost:2224", "localhost:2225", "localhost:2226"}}};
  const SimpleClusterResolver cluster_resolver(cluster_spec, {.task_type = "worker", .task_id = 1});
  std::string block;
  if (cluster_resolver.task_type() == "worker") {
    block = "only on workers";
  } else if (cluster_resolver.task_type() == "ps") {
    block = "only on parameter servers";
  }
  EXPECT_EQ(block, "only on workers");
}

TEST(ApiExamples, AResolverReturnsTheClusterItWasGiven) {
  const ClusterSpec cluster_spec{
      {"ps", {"localhost:2222", "localhost:2223"}},
      {"worker", {"localhost:2224", "localhost:2225", "localhost:2226"}}};
  const SimpleClusterResolver cluster_resolver(cluster_spec);
  EXPECT_EQ(cluster_resolver.cluster_spec(), cluster_spec);
  EXPECT_EQ(cluster_resolver.cluster_spec().task_address("worker", 2), "localhost:2226");
  EXPECT_FALSE(cluster_resolver.task_type());
  EXPECT_FALSE(cluster_resolver.task_id());
}

}  // namespace tutti::api_examples_cluster_resolver_test
