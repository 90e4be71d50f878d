// SPDX-License-Identifier: Apache-2.0
//
// Tests CPU devices; tests/process/gpu_scope_test.cc tests GPUs with a recording guard.

#include "tutti/device/device_scope.h"

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

TEST(DeviceScope, EveryLogicalCpuIsTheOneCpuOfLibTorch) {
  EXPECT_EQ(torch_device(DeviceSpec::parse("CPU:0")), c10::Device(c10::DeviceType::CPU));
  EXPECT_EQ(torch_device(DeviceSpec::parse("CPU:7")), c10::Device(c10::DeviceType::CPU));
  EXPECT_EQ(torch_device(DeviceSpec{}), c10::Device(c10::DeviceType::CPU));
}

TEST(DeviceScope, AGpuKeepsItsIndex) {
  EXPECT_EQ(torch_device(DeviceSpec::parse("/gpu:1")), c10::Device(c10::DeviceType::CUDA, 1));
  EXPECT_EQ(torch_device(DeviceSpec::parse("GPU")), c10::Device(c10::DeviceType::CUDA, 0));
}

TEST(DeviceScope, OtherTypesAreUnimplemented) {
  EXPECT_TUTTI_ERROR(torch_device(DeviceSpec::parse("TPU:0")), ErrorCode::kUnimplemented,
                     "\"/device:TPU:0\" is neither a CPU nor a GPU");
  const DeviceSpec tpu = DeviceSpec::parse("TPU:0");
  EXPECT_TUTTI_ERROR(DeviceScope{tpu}, ErrorCode::kUnimplemented, "TPU");
  EXPECT_EQ(current_device(), nullptr) << "a scope that failed leaves nothing behind";
}

TEST(DeviceScope, NestsAndRestores) {
  const DeviceSpec first = DeviceSpec::parse("CPU:0");
  const DeviceSpec second = DeviceSpec::parse("CPU:1");
  EXPECT_EQ(current_device(), nullptr);
  {
    const DeviceScope outer(first);
    EXPECT_EQ(current_device(), &first);
    {
      const DeviceScope inner(second);
      EXPECT_EQ(current_device(), &second);
    }
    EXPECT_EQ(current_device(), &first);
  }
  EXPECT_EQ(current_device(), nullptr);
}

TEST(DeviceScope, BelongsToOneThread) {
  const DeviceSpec spec = DeviceSpec::parse("CPU:0");
  const DeviceScope scope(spec);
  const DeviceSpec* seen = &spec;
  {
    Thread other("other", [&] { seen = current_device(); });
  }
  EXPECT_EQ(seen, nullptr);
}

}  // namespace
}  // namespace tutti
