// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/many-workers.md.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

namespace tutti::docs_many_workers_test {

TEST(ManyWorkers, RunAsThreads) {
  // [snippet cluster]
  tutti::InProcessCluster cluster(/*workers=*/2, {.devices = {"CPU:0", "CPU:1"}});
  cluster.run([](const tutti::Strategy& strategy) {
    auto ids =
        strategy.run([] { return tutti::get_replica_context()->replica_id_in_sync_group(); });
    int sum = strategy.reduce(tutti::ReduceOp::kSum, ids);  // 0 + 1 + 2 + 3, on both workers
    EXPECT_EQ(sum, 6);
  });
  // [/snippet]
}

}  // namespace tutti::docs_many_workers_test
