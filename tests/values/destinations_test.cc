// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/destinations.h"

#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

std::string names(const Destinations& destinations) {
  std::string text;
  for (const DeviceSpec& device : destinations.devices()) text += device.to_string() + ' ';
  return text;
}

const std::string kCpu = "/job:localhost/replica:0/task:0/device:CPU:";

TEST(Destinations, AreMadeFromNames) {
  EXPECT_EQ(names("CPU:1"), kCpu + "1 ");
  EXPECT_EQ(names(std::string("/device:CPU:2")), kCpu + "2 ");
  EXPECT_EQ(names(DeviceSpec::canonical("CPU:3")), kCpu + "3 ");
  EXPECT_EQ(names(Destinations({DeviceSpec::canonical("CPU:1"), DeviceSpec::canonical("CPU:0")})),
            kCpu + "1 " + kCpu + "0 ");
}

TEST(Destinations, AreWhereAValueLies) {
  const at::Tensor x = at::zeros({2});
  const IndexedSlices slices(x, at::zeros({2}, at::kLong));
  EXPECT_EQ(names(x), kCpu + "0 ");
  EXPECT_EQ(names(slices), kCpu + "0 ");
  EXPECT_EQ(names(PerReplica<at::Tensor>({x})), kCpu + "0 ");
  EXPECT_EQ(names(PerReplica<at::Tensor>({x, x, x})), kCpu + "0 " + kCpu + "1 " + kCpu + "2 ");
  EXPECT_EQ(names(Mirrored<at::Tensor>({x, x})), kCpu + "0 " + kCpu + "1 ");
  EXPECT_EQ(names(PerReplica<IndexedSlices>({slices, slices})), kCpu + "0 " + kCpu + "1 ");
  EXPECT_EQ(Destinations(Mirrored<IndexedSlices>({slices, slices})).size(), 2u);
}

TEST(Destinations, MustExistAndBeDevices) {
  EXPECT_TUTTI_ERROR(Destinations(""), ErrorCode::kInvalidArgument,
                     "Destinations: destinations can not be empty");
  EXPECT_TUTTI_ERROR(Destinations(std::vector<DeviceSpec>{}), ErrorCode::kInvalidArgument,
                     "destinations can not be empty");
  EXPECT_TUTTI_ERROR(Destinations("CPU:one"), ErrorCode::kInvalidArgument, "CPU:one");
  EXPECT_TUTTI_ERROR(Destinations(at::Tensor()), ErrorCode::kInvalidArgument,
                     "the tensor is undefined");
  EXPECT_TUTTI_ERROR(Destinations(PerReplica<at::Tensor>({at::zeros({1}), at::Tensor()})),
                     ErrorCode::kInvalidArgument, "the tensor is undefined");
  EXPECT_TUTTI_ERROR(Destinations(at::empty({1}, at::kMeta)), ErrorCode::kInvalidArgument,
                     "a tensor lies on \"meta\"; only CPUs and GPUs");
}

TEST(Destinations, AreDevicesThatThisProcessHas) {
  EXPECT_EQ(Destinations("CPU:15").size(), 1U);
  EXPECT_TUTTI_ERROR(Destinations("CPU:99"), ErrorCode::kNotFound,
                     "Destinations: device \"CPU:99\" does not exist; this process has CPU:0");
  EXPECT_TUTTI_ERROR(Destinations("GPU:0"), ErrorCode::kNotFound,
                     "Destinations: device \"GPU:0\" does not exist", "CUDA");
  EXPECT_TUTTI_ERROR(Destinations(DeviceSpec::canonical("CPU:99")), ErrorCode::kNotFound, "CPU:99");
  EXPECT_TUTTI_ERROR(Destinations("/job:worker/task:1/device:CPU:0"), ErrorCode::kInvalidArgument,
                     "belongs to another process");
}

}  // namespace
}  // namespace tutti
