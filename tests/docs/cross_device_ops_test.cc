// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/cross-device-ops.md.

#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

namespace {

using tutti::ReduceOp;

TEST(CrossDeviceOpsGuide, IsAnOptionOfAStrategy) {
  // [snippet choose]
  tutti::MirroredStrategy strategy(
      {"CPU:0", "CPU:1", "CPU:2", "CPU:3"},
      {.cross_device_ops = std::make_shared<tutti::HierarchicalCopyAllReduce>(/*num_packs=*/4)});
  // [/snippet]
  const auto sums = strategy.run(
      [] { return tutti::get_replica_context()->all_reduce(ReduceOp::kSum, torch::ones({9})); });
  EXPECT_EQ(sums[3][8].item<float>(), 4);
}

TEST(CrossDeviceOpsGuide, CanBeUsedAlone) {
  // [snippet alone]
  tutti::HostAllReduce ops;
  tutti::PerReplica<at::Tensor> value({torch::tensor({1., 2.}), torch::tensor({3., 4.})});

  at::Tensor sum = ops.reduce(ReduceOp::kSum, value, "CPU:0")[0];                // on one device
  tutti::Mirrored<at::Tensor> mean = ops.reduce(ReduceOp::kMean, value, value);  // where it lies
  std::vector<tutti::Mirrored<at::Tensor>> both =
      ops.batch_reduce(ReduceOp::kSum, {{value, value}, {value, "CPU:1"}});
  tutti::Mirrored<at::Tensor> copies = ops.broadcast(sum, value);
  at::Tensor all = ops.gather(value, "CPU:0", /*axis=*/0)[0];  // 1, 2, 3, 4
  // [/snippet]
  EXPECT_TRUE(torch::equal(sum, torch::tensor({4., 6.})));
  EXPECT_EQ(mean.size(), 2u);
  EXPECT_TRUE(torch::equal(mean[1], torch::tensor({2., 3.})));
  EXPECT_TRUE(torch::equal(both[1][0], sum));
  EXPECT_EQ(both[0].size(), 2u);
  EXPECT_TRUE(torch::equal(copies[1], sum));
  EXPECT_TRUE(torch::equal(all, torch::tensor({1., 2., 3., 4.})));
}

TEST(CrossDeviceOpsGuide, TakesASumOfYourOwn) {
  // [snippet accumulation]
  // The median of the replicas times their number: one replica that went astray does no harm.
  auto ops = std::make_shared<tutti::ReductionToOneDevice>(
      "CPU:0", [](const std::vector<at::Tensor>& components) {
        at::Tensor median = std::get<0>(torch::stack(components).median(0));
        return median * static_cast<int64_t>(components.size());
      });
  // [/snippet]
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"}, {.cross_device_ops = ops});
  const auto means = strategy.run([] {
    tutti::ReplicaContext& replica = *tutti::get_replica_context();
    const double value = replica.replica_id_in_sync_group() == 1 ? 1e9 : 2;
    return replica.all_reduce(ReduceOp::kMean, torch::full({3}, value));
  });
  EXPECT_TRUE(torch::equal(means[2], torch::full({3}, 2.)));
}

TEST(CrossDeviceOpsGuide, ConcatenatesSparseValues) {
  tutti::HostAllReduce ops;
  // [snippet sparse]
  using tutti::IndexedSlices;
  tutti::PerReplica<IndexedSlices> value(
      {IndexedSlices(torch::ones({1, 2}), torch::tensor({4}), {10, 2}),
       IndexedSlices(torch::ones({2, 2}), torch::tensor({4, 7}), {10, 2})});
  IndexedSlices mean = ops.reduce(ReduceOp::kMean, value, "CPU:0")[0];  // rows 4, 4, 7
  at::Tensor dense = mean.to_dense();                                   // row 4 is 1, row 7 is 0.5
  // [/snippet]
  EXPECT_TRUE(torch::equal(mean.indices(), torch::tensor({4, 4, 7})));
  EXPECT_EQ(dense[4][0].item<float>(), 1);
  EXPECT_EQ(dense[7][1].item<float>(), 0.5);
}

TEST(CrossDeviceOpsGuide, TheRuleCanBeAsked) {
  // [snippet select]
  std::vector<tutti::DeviceSpec> devices = {tutti::DeviceSpec::canonical("CPU:0"),
                                            tutti::DeviceSpec::canonical("GPU:0")};
  std::shared_ptr<tutti::CrossDeviceOps> ops = tutti::select_cross_device_ops(devices);
  // log: Using ReductionToOneDevice between CPU:0, GPU:0: there are CPUs and GPUs.
  // [/snippet]
  EXPECT_NE(dynamic_cast<tutti::ReductionToOneDevice*>(ops.get()), nullptr);
}

}  // namespace
