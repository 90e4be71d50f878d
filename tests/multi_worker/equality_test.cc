// SPDX-License-Identifier: Apache-2.0
//
// The bits of training depend on the replicas, not on the processes that host them.

#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/multi_worker/training.h"
#include "tests/support/temp_folder.h"

namespace tutti::equality_test {

using testing::cpus;
using testing::train;

testing::TrainingOptions with(bool norm) {
  testing::TrainingOptions options;
  options.with_norm = norm;
  return options;
}

std::string train_in_cluster(int workers, int local, bool with_norm = false,
                             CommunicationImplementation way = CommunicationImplementation::kAuto) {
  InProcessClusterOptions options;
  options.devices = cpus(local);
  options.runner.threads_per_replica = 1;
  options.communication_options.implementation = way;
  const InProcessCluster cluster(workers, options);
  torch::manual_seed(7);
  std::vector<std::string> results(static_cast<size_t>(workers));
  cluster.run([&](const Strategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), workers * local);
    results[static_cast<size_t>(strategy.extended().workers().rank())] =
        train(strategy, with(with_norm));
  });
  for (const std::string& each : results) EXPECT_TRUE(each == results[0]);
  return results[0];
}

std::string train_mirrored(int replicas, bool with_norm = false) {
  MirroredStrategyOptions options;
  options.runner.threads_per_replica = 1;
  std::string result;
  torch::manual_seed(7);
  // Runs on a thread of a cluster, so that the random numbers are those of the others.
  InProcessCluster(1).run([&](const Strategy&) {
    result = train(MirroredStrategy(cpus(replicas), options), with(with_norm));
  });
  return result;
}

TEST(Equality, HoldsForTwoReplicas) {
  const std::string expected = train_mirrored(2);
  EXPECT_TRUE(train_in_cluster(2, 1) == expected);
  EXPECT_TRUE(train_in_cluster(1, 2) == expected);
}

TEST(Equality, HoldsForFourReplicas) {
  const std::string expected = train_mirrored(4);
  EXPECT_TRUE(train_in_cluster(4, 1) == expected);
  EXPECT_TRUE(train_in_cluster(2, 2) == expected);
  EXPECT_TRUE(train_in_cluster(1, 4) == expected);
}

TEST(Equality, HoldsForSixReplicas) {
  const std::string expected = train_mirrored(6);
  EXPECT_TRUE(train_in_cluster(3, 2) == expected);
  EXPECT_TRUE(train_in_cluster(2, 3) == expected);
}

TEST(Equality, HoldsForBuffers) {
  const std::string expected = train_mirrored(6, true);
  EXPECT_TRUE(train_in_cluster(3, 2, true) == expected);
  EXPECT_TRUE(train_in_cluster(2, 3, true) == expected);
}

// Other numbers of replicas add in a different order, and draw different random numbers: without
// dropout the results agree up to rounding.
TEST(Equality, BetweenNumbersOfReplicasUpToRounding) {
  testing::TrainingOptions options;
  options.dropout = 0;
  options.dtype = at::kDouble;
  std::vector<std::vector<at::Tensor>> results;
  for (const auto& [workers, local] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}, {3, 2}}) {
    InProcessClusterOptions cluster;
    cluster.devices = cpus(local);
    cluster.runner.threads_per_replica = 1;
    torch::manual_seed(7);
    std::vector<at::Tensor>& result = results.emplace_back();
    InProcessCluster(workers, cluster).run([&](const Strategy& strategy) {
      std::vector<at::Tensor> mine = testing::train_tensors(strategy, options);
      if (strategy.extended().workers().rank() == 0) result = std::move(mine);
    });
  }
  for (size_t i = 1; i < results.size(); ++i) {
    for (size_t t = 0; t < results[0].size(); ++t) {
      const at::Tensor& expected = results[0][t];
      const double error = (results[i][t] - expected).abs().max().item<double>();
      EXPECT_LT(error, 1e-12 * expected.abs().max().item<double>()) << i << ", tensor " << t;
    }
  }
}

std::string train_two_by_two(const testing::TrainingOptions& options) {
  torch::manual_seed(7);
  std::string result;
  InProcessCluster(2, {.devices = cpus(2), .runner = {.threads_per_replica = 1}})
      .run([&](const Strategy& strategy) {
        std::string mine = train(strategy, options);
        if (strategy.extended().workers().rank() == 0) result = std::move(mine);
      });
  return result;
}

TEST(Equality, HoldsForTwoRunsWithDataSplitByRows) {
  testing::TrainingOptions options;
  options.policy = data::AutoShardPolicy::kData;
  const std::string first = train_two_by_two(options);
  EXPECT_TRUE(train_two_by_two(options) == first);
}

TEST(Equality, HoldsForTwoRunsWithDataSplitByFiles) {
  const test::TempFolder folder;
  testing::TrainingOptions options;
  options.policy = data::AutoShardPolicy::kFile;
  // The files have different lengths, so that the workers end at different times.
  for (int64_t file = 0, row = 0; file < 3; ++file) {
    options.files.push_back(folder.path(message("rows", file)));
    std::ofstream lines(options.files.back());
    for (int64_t i = 0; i < 60 + 30 * file; ++i) lines << row++ << "\n";
  }
  const std::string first = train_two_by_two(options);
  EXPECT_TRUE(train_two_by_two(options) == first);
}

TEST(Equality, HoldsOverGrpc) {
  EXPECT_TRUE(train_in_cluster(2, 1, false, CommunicationImplementation::kGrpc) ==
              train_mirrored(2));
  EXPECT_TRUE(train_in_cluster(2, 3, true, CommunicationImplementation::kGrpc) ==
              train_mirrored(6, true));
}

}  // namespace tutti::equality_test
