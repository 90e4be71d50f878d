// SPDX-License-Identifier: Apache-2.0

#include "cli/local_cluster.h"

#include <set>

#include <gtest/gtest.h>

#include "tutti/base/address.h"

namespace tutti::cli::test::local_cluster {
namespace {

TEST(LocalCluster, HasADifferentLoopbackPortForEachWorker) {
  const auto addresses = free_addresses(20);
  EXPECT_EQ(std::set(addresses.begin(), addresses.end()).size(), 20U);
  for (const std::string& each : addresses) EXPECT_EQ(parse_address(each).host, "127.0.0.1");
}

TEST(LocalCluster, WritesTheEnvironmentOfClusterManagers) {
  const auto variables = worker_environment({"127.0.0.1:81", "127.0.0.1:82"}, 1);
  ASSERT_EQ(variables.size(), 1U);
  EXPECT_EQ(variables.at("TF_CONFIG"),
            R"({"cluster": {"worker": ["127.0.0.1:81", "127.0.0.1:82"]}, )"
            R"("task": {"type": "worker", "index": 1}})");
}

}  // namespace
}  // namespace tutti::cli::test::local_cluster
