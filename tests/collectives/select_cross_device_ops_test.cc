// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/select_cross_device_ops.h"

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/collectives/host_all_reduce.h"
#include "tutti/collectives/nccl/nccl_all_reduce.h"
#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/collectives/worker_cross_device_ops.h"

#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/thread_ranks.h"

namespace tutti {
namespace {

using Kind = CrossDeviceOpsChoice::Kind;

std::vector<DeviceSpec> devices(const std::vector<std::string>& names) {
  std::vector<DeviceSpec> specs;
  for (const std::string& name : names) specs.push_back(DeviceSpec::canonical(name));
  return specs;
}

CrossDeviceOpsChoice choose(const std::vector<std::string>& names, bool nccl = true) {
  return choose_cross_device_ops(devices(names), nccl);
}

TEST(SelectCrossDeviceOps, ReducesCpusInHostMemory) {
  for (const bool nccl : {false, true}) {
    EXPECT_EQ(choose({"CPU:0"}, nccl).kind, Kind::kHostAllReduce);
    EXPECT_EQ(choose({"CPU:0", "CPU:1", "/job:worker/device:CPU:2"}, nccl).kind,
              Kind::kHostAllReduce);
  }
  EXPECT_EQ(choose({"CPU:0", "CPU:1"}).reason, "all devices are CPUs");
}

TEST(SelectCrossDeviceOps, UsesNcclForDifferentGpusIfAvailable) {
  EXPECT_EQ(choose({"GPU:0", "GPU:1"}, true).kind, Kind::kNcclAllReduce);
  EXPECT_EQ(choose({"GPU:3", "GPU:1", "GPU:0"}, true).kind, Kind::kNcclAllReduce);
  const auto without = choose({"GPU:0", "GPU:1"}, false);
  EXPECT_EQ(without.kind, Kind::kReductionToOneDevice);
  EXPECT_EQ(without.reason, "NCCL is not available");
}

TEST(SelectCrossDeviceOps, ReducesEverythingElseOnOneDevice) {
  const auto mixed = choose({"GPU:0", "CPU:0"});
  EXPECT_EQ(mixed.kind, Kind::kReductionToOneDevice);
  EXPECT_EQ(mixed.reason, "there are CPUs and GPUs");
  const auto twice = choose({"GPU:0", "GPU:1", "GPU:1"});
  EXPECT_EQ(twice.kind, Kind::kReductionToOneDevice);
  EXPECT_EQ(twice.reason, "GPU:1 is listed twice, which NCCL does not support");
  EXPECT_EQ(choose({"GPU:0"}).kind, Kind::kReductionToOneDevice);
  EXPECT_EQ(choose({"GPU:0"}).reason, "there is one GPU");
}

TEST(SelectCrossDeviceOps, RefusesImpossibleLists) {
  EXPECT_TUTTI_ERROR(choose({}), ErrorCode::kInvalidArgument, "the list of devices is empty");
  EXPECT_TUTTI_ERROR(choose({"TPU:0"}), ErrorCode::kUnimplemented, "TPU:0");
}

TEST(SelectCrossDeviceOps, SaysWhatItChoseWhenThereWasAChoice) {
  const test::LogCapture log;
  const auto host = select_cross_device_ops(devices({"CPU:0", "CPU:1"}));
  EXPECT_NE(dynamic_cast<HostAllReduce*>(host.get()), nullptr);
  const auto one = select_cross_device_ops(devices({"CPU:0", "GPU:0"}));
  EXPECT_NE(dynamic_cast<ReductionToOneDevice*>(one.get()), nullptr);
  const auto gpu = select_cross_device_ops(devices({"GPU:0"}));
  EXPECT_NE(dynamic_cast<ReductionToOneDevice*>(gpu.get()), nullptr);
  const auto lines = log.lines();
  ASSERT_EQ(lines.size(), 1u) << "CPUs and a single device need no words\n" << log.text();
  EXPECT_EQ(lines[0].text,
            "Using ReductionToOneDevice between CPU:0, GPU:0: there are CPUs and GPUs.");
  EXPECT_EQ(lines[0].level, LogLevel::kInfo);
}

TEST(SelectCrossDeviceOps, CombinesOverAllWorkers) {
  const auto alone = select_cross_device_ops(WorkerGroup::alone(), devices({"CPU:0", "CPU:1"}));
  EXPECT_NE(dynamic_cast<HostAllReduce*>(alone.get()), nullptr);
  const auto errors = testing::run_thread_ranks(2, [](WorkerGroup& group) {
    const std::shared_ptr<WorkerGroup> borrowed(&group, [](WorkerGroup*) {});
    const auto ops = select_cross_device_ops(borrowed, devices({"CPU:0", "CPU:1", "CPU:2"}));
    auto* const over_workers = dynamic_cast<WorkerCrossDeviceOps*>(ops.get());
    ASSERT_NE(over_workers, nullptr);
    EXPECT_EQ(over_workers->tree().replicas(), 6);
  });
  for (const std::exception_ptr& each : errors) EXPECT_EQ(each, nullptr);
}

TEST(SelectCrossDeviceOps, ChoosesForGpusWhatTheProcessHas) {
  const test::LogCapture log;
  const auto first = select_cross_device_ops(devices({"GPU:0", "GPU:1"}));
  const auto second = select_cross_device_ops(devices({"GPU:1", "GPU:2"}));
  if (nccl_is_available()) {
    EXPECT_NE(dynamic_cast<NcclAllReduce*>(first.get()), nullptr);
    EXPECT_EQ(first, second) << "strategies may share GPUs, so they share the object";
    EXPECT_EQ(log.count("Using NcclAllReduce between GPU:0, GPU:1: all devices are different"), 1);
  } else {
    EXPECT_NE(dynamic_cast<ReductionToOneDevice*>(first.get()), nullptr);
    EXPECT_NE(first, second);
    EXPECT_EQ(log.count("Using ReductionToOneDevice between GPU:1, GPU:2: NCCL is not available."),
              1)
        << log.text();
  }
}

}  // namespace
}  // namespace tutti
