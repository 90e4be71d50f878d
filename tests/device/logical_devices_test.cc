// SPDX-License-Identifier: Apache-2.0
//
// Each test has its own table; tests/process/ tests the table of the process.

#include "tutti/device/logical_devices.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/error.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using internal::LogicalDeviceTable;

std::vector<std::string> names(const std::vector<LogicalDevice>& devices) {
  std::vector<std::string> result;
  for (const LogicalDevice& device : devices) result.push_back(device.name + "=" + device.type);
  return result;
}

std::vector<std::string> short_names(const std::vector<DeviceSpec>& specs) {
  std::vector<std::string> result;
  for (const DeviceSpec& spec : specs) result.push_back(spec.short_name());
  return result;
}

using Names = std::vector<std::string>;

TEST(LogicalDevices, OneCpuExistsByDefault) {
  const LogicalDeviceTable table(0);
  EXPECT_EQ(names(table.list("")), Names{"/device:CPU:0=CPU"});
  EXPECT_EQ(names(table.list("GPU")), Names{});
}

TEST(LogicalDevices, ListsCpusThenGpusOrOneType) {
  LogicalDeviceTable table(2);
  table.set_cpu_count(2);
  EXPECT_EQ(names(table.list("")), (Names{"/device:CPU:0=CPU", "/device:CPU:1=CPU",
                                          "/device:GPU:0=GPU", "/device:GPU:1=GPU"}));
  EXPECT_EQ(names(table.list("GPU")), (Names{"/device:GPU:0=GPU", "/device:GPU:1=GPU"}));
  EXPECT_EQ(names(table.list("CPU")), (Names{"/device:CPU:0=CPU", "/device:CPU:1=CPU"}));
  EXPECT_EQ(names(table.list("TPU")), Names{});
}

TEST(LogicalDevices, AcceptsTheSameCountAgainButNoOther) {
  LogicalDeviceTable table(0);
  table.set_cpu_count(3);
  table.set_cpu_count(3);
  EXPECT_TUTTI_ERROR(table.set_cpu_count(4), ErrorCode::kFailedPrecondition,
                     "set_logical_cpu_devices: cannot change the number of CPU devices from 3 to 4",
                     "before creating the first strategy");
  EXPECT_EQ(table.list("CPU").size(), 3u);
}

TEST(LogicalDevices, RejectsImpossibleCounts) {
  LogicalDeviceTable table(0);
  for (const int count : {0, -1, 1025}) {
    EXPECT_TUTTI_ERROR(table.set_cpu_count(count), ErrorCode::kInvalidArgument,
                       "set_logical_cpu_devices: the count is " + std::to_string(count),
                       "between 1 and 1024");
  }
  EXPECT_EQ(table.list("CPU").size(), 1u);
  table.set_cpu_count(1024);
  EXPECT_EQ(table.list("CPU").size(), 1024u);
}

TEST(LogicalDevices, TheFirstStrategyFixesTheNumberOfCpus) {
  LogicalDeviceTable table(0);
  const auto specs = table.resolve("MirroredStrategy", {"CPU:0", "/cpu:3"});
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[0].to_string(), "/job:localhost/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(specs[1].to_string(), "/job:localhost/replica:0/task:0/device:CPU:3");
  EXPECT_EQ(table.list("CPU").size(), 4u);
  EXPECT_EQ(short_names(table.resolve("MirroredStrategy", {"CPU:2"})), Names{"CPU:2"});
  EXPECT_TUTTI_ERROR(table.resolve("MirroredStrategy", {"CPU:4"}), ErrorCode::kNotFound,
                     "MirroredStrategy: device \"CPU:4\" does not exist",
                     "this process has CPU:0, CPU:1, CPU:2, CPU:3.",
                     "set_logical_cpu_devices(5) before creating the first strategy");
  EXPECT_TUTTI_ERROR(table.set_cpu_count(5), ErrorCode::kFailedPrecondition, "from 4 to 5");
}

TEST(LogicalDevices, AnExplicitCountOverridesTheFirstStrategy) {
  LogicalDeviceTable table(0);
  table.set_cpu_count(2);
  EXPECT_TUTTI_ERROR(table.resolve("OneDeviceStrategy", {"CPU:2"}), ErrorCode::kNotFound,
                     "OneDeviceStrategy: device \"CPU:2\"", "this process has CPU:0, CPU:1.");
  EXPECT_EQ(short_names(table.resolve("OneDeviceStrategy", {"CPU:1"})), Names{"CPU:1"});
}

TEST(LogicalDevices, AbbreviatesLongDeviceLists) {
  LogicalDeviceTable table(0);
  table.set_cpu_count(16);
  EXPECT_TUTTI_ERROR(table.resolve("S", {"CPU:16"}), ErrorCode::kNotFound,
                     "CPU:0, CPU:1, CPU:2, CPU:3, CPU:4, CPU:5, CPU:6, CPU:7, ... CPU:15.");
}

TEST(LogicalDevices, AnEmptyListMeansAllGpusElseAllCpus) {
  LogicalDeviceTable with_gpus(2);
  with_gpus.set_cpu_count(4);
  EXPECT_EQ(short_names(with_gpus.resolve("S", {})), (Names{"GPU:0", "GPU:1"}));
  LogicalDeviceTable without(0);
  without.set_cpu_count(3);
  EXPECT_EQ(short_names(without.resolve("S", {})), (Names{"CPU:0", "CPU:1", "CPU:2"}));
  LogicalDeviceTable untouched(0);
  EXPECT_EQ(short_names(untouched.resolve("S", {})), Names{"CPU:0"});
}

TEST(LogicalDevices, OffersTheGpusThatWereCounted) {
  LogicalDeviceTable table(2);
  EXPECT_EQ(short_names(table.resolve("S", {"GPU:1", "CPU:0", "gpu:0"})),
            (Names{"GPU:1", "CPU:0", "GPU:0"}));
  EXPECT_TUTTI_ERROR(table.resolve("S", {"GPU:2"}), ErrorCode::kNotFound,
                     "S: device \"GPU:2\" does not exist; this process has CPU:0, GPU:0, GPU:1.",
                     "GPUs need a LibTorch built with CUDA");
  LogicalDeviceTable none(0);
  EXPECT_TUTTI_ERROR(none.resolve("S", {"GPU:0"}), ErrorCode::kNotFound, "this process has CPU:0.");
}

TEST(LogicalDevices, RejectsDuplicateDevices) {
  LogicalDeviceTable table(0);
  EXPECT_TUTTI_ERROR(table.resolve("MirroredStrategy", {"CPU:0", "CPU:1", "/device:cpu:0"}),
                     ErrorCode::kInvalidArgument,
                     "MirroredStrategy: device "
                     "\"/job:localhost/replica:0/task:0/device:CPU:0\" is listed more than "
                     "once",
                     "CPU:1, CPU:2");
}

TEST(LogicalDevices, RejectsDevicesOfOtherProcesses) {
  LogicalDeviceTable table(0);
  for (const char* name : {"/job:worker/task:0/CPU:0", "/task:1/CPU:0", "/replica:1/CPU:0"}) {
    EXPECT_TUTTI_ERROR(table.resolve("S", {name}), ErrorCode::kInvalidArgument, "S: device \"",
                       "belongs to another process", "Write it as \"CPU:0\"");
  }
  EXPECT_EQ(table.resolve("S", {"/job:localhost/replica:0/task:0/device:CPU:0"}).size(), 1u);
}

TEST(LogicalDevices, OtherTypesAreUnimplemented) {
  LogicalDeviceTable table(1);
  EXPECT_TUTTI_ERROR(table.resolve("S", {"TPU:0"}), ErrorCode::kUnimplemented,
                     "S: the type of device \"TPU:0\" is not supported; use CPU or GPU.");
}

TEST(LogicalDevices, RejectsMalformedNames) {
  LogicalDeviceTable table(0);
  EXPECT_TUTTI_ERROR(table.resolve("S", {"CPU:0", "disk:0"}), ErrorCode::kInvalidArgument,
                     "cannot read \"disk:0\"");
}

TEST(LogicalDevices, ARejectedListDoesNotFixTheCount) {
  const std::vector<std::vector<std::string>> refused = {
      {"CPU:3", "GPU:0"},    {"CPU:3", "CPU:3"}, {"CPU:3", "TPU:0"}, {"CPU:3", "/job:worker/CPU:0"},
      {"CPU:3", "nonsense"}, {"CPU:5000"}};
  for (const auto& list : refused) {
    LogicalDeviceTable table(0);
    EXPECT_THROW(table.resolve("S", list), Error);
    EXPECT_EQ(table.list("CPU").size(), 1u) << list.back();
    EXPECT_NO_THROW(table.set_cpu_count(2)) << list.back();
  }
}

TEST(LogicalDevices, TheFunctionsUseTheTableOfTheProcess) {
  const size_t count = list_logical_devices("CPU").size();
  EXPECT_EQ(count, internal::logical_device_table().list("CPU").size());
  EXPECT_EQ(list_logical_devices("CPU")[0], (LogicalDevice{"/device:CPU:0", "CPU"}));
  EXPECT_TUTTI_ERROR(set_logical_cpu_devices(static_cast<int>(count) + 1),
                     ErrorCode::kFailedPrecondition, "set_logical_cpu_devices");
}

}  // namespace
}  // namespace tutti
