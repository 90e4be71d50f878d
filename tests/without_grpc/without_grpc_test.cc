// SPDX-License-Identifier: Apache-2.0
//
// What a build without gRPC can do, and what it says of the rest.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tutti/cluster/resolvers/simple.h"
#include "tutti/group/connect.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/testing/in_process_cluster.h"

#include "tests/support/expect_error.h"

namespace tutti::without_grpc_test {

std::shared_ptr<SimpleClusterResolver> first_of(const std::vector<std::string>& workers) {
  return std::make_shared<SimpleClusterResolver>(
      ClusterSpec(std::map<std::string, std::vector<std::string>>{{"worker", workers}}),
      SimpleClusterResolverOptions{.task_type = "worker", .task_id = 0});
}

TEST(WithoutGrpc, WorkersOfOneProcessShareMemory) {
  InProcessCluster(2).run([](const Strategy& strategy) {
    const PerReplica<double> sums = strategy.run([] {
      return get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2})).sum().item<double>();
    });
    EXPECT_EQ(sums[0], 4);
  });
}

TEST(WithoutGrpc, AWorkerMayBeAlone) {
  const MultiWorkerMirroredStrategy strategy(first_of({"127.0.0.1:4321"}), {.devices = {"CPU:0"}});
  EXPECT_EQ(strategy.extended().workers().size(), 1);
}

TEST(WithoutGrpc, SeveralProcessesAreToldHowToGetIt) {
  EXPECT_TUTTI_ERROR(MultiWorkerMirroredStrategy(first_of({"127.0.0.1:4321", "127.0.0.1:4322"})),
                     ErrorCode::kUnimplemented, "MultiWorkerMirroredStrategy: the 2 workers",
                     "-DTUTTI_WITH_GRPC=ON");
}

TEST(WithoutGrpc, AClusterThatAsksForItIsToldHowToGetIt) {
  InProcessClusterOptions options;
  options.communication_options.implementation = CommunicationImplementation::kGrpc;
  EXPECT_TUTTI_ERROR(InProcessCluster(2, options).run([](const Strategy&) {}),
                     ErrorCode::kUnimplemented, "gRPC is not in this build",
                     "-DTUTTI_WITH_GRPC=ON");
}

}  // namespace tutti::without_grpc_test
