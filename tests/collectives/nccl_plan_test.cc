// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_plan.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti::internal {
namespace {

using Parts = std::vector<PackPart>;

const c10::Device kCpu(c10::DeviceType::CPU);
c10::Device cuda(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

// Tensor t of replica r counts as lying on devices[t][r].
NcclPlan plan_of(std::vector<at::Tensor> tensors,
                 const std::vector<std::vector<c10::Device>>& devices, int num_packs,
                 ReduceOp op = ReduceOp::kSum) {
  std::vector<at::Tensor*> like;
  for (at::Tensor& each : tensors) like.push_back(&each);
  const auto tensor_of = [&](size_t, size_t t) -> at::Tensor& { return tensors[t]; };
  const auto memory = [](size_t, size_t) { return AllReduceBatch::Memory{nullptr, nullptr}; };
  const AllReduceBatch batch(op, devices.at(0).size(), like, tensor_of, tensor_of, memory, {});
  return plan_nccl(batch, num_packs, [&](size_t replica, const at::Tensor& tensor) {
    size_t t = 0;
    while (!tensors[t].is_same(tensor)) ++t;
    return devices[t][replica];
  });
}

TEST(NcclPlan, PacksTensorsOfOneDtypeTogetherAndHostTensorsNotAtAll) {
  const std::vector<c10::Device> gpus = {cuda(2), cuda(0), cuda(1)};
  const NcclPlan plan =
      plan_of({at::ones({4}), at::ones({5}, at::kHalf), at::ones({2, 3}), at::ones({9})},
              {gpus, gpus, gpus, {kCpu, kCpu, kCpu}}, 2);
  EXPECT_EQ(plan.devices, gpus);
  EXPECT_EQ(plan.host_tensors, (std::vector<size_t>{3}));
  ASSERT_EQ(plan.packs.size(), 4u);
  EXPECT_EQ(plan.packs[0].parts, (Parts{{0, 0, 4}, {2, 0, 1}}));
  EXPECT_EQ(plan.packs[1].parts, (Parts{{2, 1, 6}}));
  EXPECT_EQ(plan.packs[2].parts, (Parts{{1, 0, 2}}));
  EXPECT_EQ(plan.packs[3].parts, (Parts{{1, 2, 5}}));
  EXPECT_EQ(plan.packs[0].dtype, at::kFloat);
  EXPECT_EQ(plan.packs[3].dtype, at::kHalf);
  EXPECT_EQ(plan.packs[0].numel, 5);
  EXPECT_EQ(plan.packs[0].chunk, 2) << "5 elements, 3 replicas";
  EXPECT_EQ(plan.packs[3].chunk, 1) << "3 elements, 3 replicas";
  EXPECT_EQ(plan.packs[3].bytes(), 6u);
}

TEST(NcclPlan, GivesTheMeanOfIntegersItsOwnDtype) {
  const NcclPlan plan =
      plan_of({at::ones({4}, at::kLong)}, {{cuda(0), cuda(1)}}, 1, ReduceOp::kMean);
  ASSERT_EQ(plan.packs.size(), 1u);
  EXPECT_EQ(plan.packs[0].dtype, at::kLong);
  EXPECT_EQ(plan.packs[0].reduced_dtype, at::kDouble);
}

TEST(NcclPlan, MakesNoPackForEmptyAndHostTensors) {
  EXPECT_TRUE(plan_of({at::ones({0})}, {{cuda(0), cuda(1)}}, 0).packs.empty());
  const NcclPlan plan = plan_of({at::ones({3})}, {{kCpu, kCpu}}, 1);
  EXPECT_TRUE(plan.packs.empty());
  EXPECT_TRUE(plan.devices.empty());
  EXPECT_EQ(plan.host_tensors.size(), 1u);
}

TEST(NcclPlan, RequiresADifferentGpuForEachReplica) {
  const at::Tensor one = at::ones({1});
  EXPECT_TUTTI_ERROR(plan_of({one}, {{cuda(0), kCpu}}, 1), ErrorCode::kInvalidArgument,
                     "NcclAllReduce: tensor 0 of the batch is on cpu for replica 1; NCCL reduces "
                     "between CUDA devices. Use HostAllReduce, which accepts any placement.");
  EXPECT_TUTTI_ERROR(plan_of({one}, {{kCpu, cuda(0)}}, 1), ErrorCode::kInvalidArgument,
                     "is on cpu for replica 0; NCCL reduces between CUDA devices");
  EXPECT_TUTTI_ERROR(plan_of({one}, {{cuda(0), cuda(1), cuda(0)}}, 1), ErrorCode::kInvalidArgument,
                     "is on cuda:0 for replicas 0 and 2; NCCL needs a device of its own");
  EXPECT_TUTTI_ERROR(
      plan_of({one, at::ones({2})}, {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}, 1),
      ErrorCode::kInvalidArgument,
      "tensor 1 of the batch is on cuda:1 for replica 0, whose other tensors are on cuda:0");
}

}  // namespace
}  // namespace tutti::internal
