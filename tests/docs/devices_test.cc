// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/devices.md. main() of the tests has called set_logical_cpu_devices(16).

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace {

TEST(Devices, ReadsAndPrintsNames) {
  // [snippet spec]
  using tutti::DeviceSpec;
  DeviceSpec partial = DeviceSpec::parse("/gpu:1");
  DeviceSpec full = DeviceSpec::canonical("CPU:1");
  std::string name = full.to_string();            // "/job:localhost/replica:0/task:0/device:CPU:1"
  std::string brief = full.short_name();          // "CPU:1"
  DeviceSpec merged = full.merged_with(partial);  // the type and index of partial
  bool on_a_cpu = full.matches(DeviceSpec::parse("cpu"));  // true: any index
  // [/snippet]
  EXPECT_EQ(partial.to_string(), "/device:GPU:1");
  EXPECT_EQ(name, "/job:localhost/replica:0/task:0/device:CPU:1");
  EXPECT_EQ(brief, "CPU:1");
  EXPECT_EQ(merged.to_string(), "/job:localhost/replica:0/task:0/device:GPU:1");
  EXPECT_TRUE(on_a_cpu);
}

TEST(Devices, ListsLogicalDevices) {
  // [snippet list]
  tutti::set_logical_cpu_devices(16);  // before the first strategy
  std::vector<tutti::LogicalDevice> cpus = tutti::list_logical_devices("CPU");
  // [/snippet]
  ASSERT_EQ(cpus.size(), 16u);
  EXPECT_EQ(cpus[15].name, "/device:CPU:15");
  EXPECT_TUTTI_ERROR(tutti::set_logical_cpu_devices(4), tutti::ErrorCode::kFailedPrecondition,
                     "cannot change the number of CPU devices from 16 to 4");
}

TEST(Devices, TellsAReplicaWhereItRuns) {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  // [snippet current]
  auto names = strategy.run([] {
    const tutti::DeviceSpec& device = tutti::get_replica_context()->device();
    at::Tensor here = torch::ones({2}, tutti::torch_device(device));  // on the replica's device
    return device.short_name();
  });
  // [/snippet]
  EXPECT_EQ(names[0], "CPU:0");
  EXPECT_EQ(names[1], "CPU:1");
}

TEST(Devices, TakesOptionsForThreads) {
  // [snippet threads]
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"},
                                   {.runner = {.threads_per_replica = 1,
                                               .concurrent_replicas = 1,  // one at a time
                                               .meeting_timeout = std::chrono::minutes(2)}});
  // [/snippet]
  const auto threads = strategy.run([] { return at::get_num_threads(); });
  EXPECT_EQ(threads[0], 1);
  EXPECT_EQ(threads[1], 1);
}

}  // namespace
