// SPDX-License-Identifier: Apache-2.0
//
// The devices of a fresh process. Every case here needs its own process: ctest gives it one;
// by hand, use --gtest_filter.

#include "tutti/device/logical_devices.h"

#include <gtest/gtest.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/strategy/strategy.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

TEST(ProcessDevices, TheFirstStrategyDecidesHowManyCpusThereAre) {
  EXPECT_EQ(list_logical_devices().size(), 1u);
  EXPECT_EQ(list_logical_devices("CPU")[0], (LogicalDevice{"/device:CPU:0", "CPU"}));
  const MirroredStrategy first({"CPU:0", "CPU:2"});
  EXPECT_EQ(first.num_replicas_in_sync(), 2);
  EXPECT_EQ(list_logical_devices("CPU").size(), 3u);
  EXPECT_EQ(list_logical_devices("CPU")[2], (LogicalDevice{"/device:CPU:2", "CPU"}));
  EXPECT_NO_THROW(set_logical_cpu_devices(3));
  EXPECT_TUTTI_ERROR(set_logical_cpu_devices(4), ErrorCode::kFailedPrecondition,
                     "cannot change the number of CPU devices from 3 to 4");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0", "CPU:3"}), ErrorCode::kNotFound,
                     "MirroredStrategy: device \"CPU:3\" does not exist",
                     "this process has CPU:0, CPU:1, CPU:2.", "set_logical_cpu_devices(4)");
  EXPECT_NO_THROW(MirroredStrategy({"CPU:1"}));
}

TEST(ProcessDevices, KeepsWhatIsSetBeforeTheFirstStrategy) {
  set_logical_cpu_devices(2);
  EXPECT_EQ(list_logical_devices("CPU").size(), 2u);
  EXPECT_TUTTI_ERROR(OneDeviceStrategy("CPU:2"), ErrorCode::kNotFound,
                     "OneDeviceStrategy: device \"CPU:2\"", "this process has CPU:0, CPU:1.");
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), 2);
}

TEST(ProcessDevices, WithoutAnyWordThereIsOneCpu) {
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), 1);
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0", "CPU:1"}), ErrorCode::kNotFound,
                     "this process has CPU:0.");
}

TEST(ProcessDevices, TheDefaultStrategyDecidesNothing) {
  EXPECT_EQ(get_strategy().num_replicas_in_sync(), 1);
  EXPECT_EQ(get_strategy().run([] { return 7; }).only(), 7);
  EXPECT_NO_THROW(set_logical_cpu_devices(4));
  EXPECT_EQ(MirroredStrategy().num_replicas_in_sync(), 4);
}

TEST(ProcessDevices, AStrategyThatIsRefusedDecidesNothing) {
  EXPECT_THROW(MirroredStrategy({"CPU:0", "CPU:0"}), Error);
  EXPECT_THROW(MirroredStrategy({"CPU:3", "GPU:77"}), Error);
  EXPECT_EQ(list_logical_devices("CPU").size(), 1u);
  EXPECT_NO_THROW(set_logical_cpu_devices(2));
}

}  // namespace
}  // namespace tutti
