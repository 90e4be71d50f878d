// SPDX-License-Identifier: Apache-2.0

#include "tutti/device/device_spec.h"

#include <string>

#include <gtest/gtest.h>

#include "tutti/base/error.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

TEST(DeviceSpec, ReadsEverySpellingOfADevice) {
  const DeviceSpec gpu0{.type = "GPU", .index = 0};
  for (const char* text : {"GPU:0", "gpu:0", "Gpu:0", "/gpu:0", "/GPU:0", "/device:GPU:0",
                           "/device:gpu:0", "device:GPU:0"}) {
    EXPECT_EQ(DeviceSpec::parse(text), gpu0) << text;
  }
  EXPECT_EQ(DeviceSpec::parse("/cpu:0"), (DeviceSpec{.type = "CPU", .index = 0}));
  EXPECT_EQ(DeviceSpec::parse("CPU:12"), (DeviceSpec{.type = "CPU", .index = 12}));
  EXPECT_EQ(DeviceSpec::parse("/device:TPU:3"), (DeviceSpec{.type = "TPU", .index = 3}));
  EXPECT_EQ(DeviceSpec::parse("/device:xla_cpu:1"), (DeviceSpec{.type = "XLA_CPU", .index = 1}));
}

TEST(DeviceSpec, ReadsAFullName) {
  const DeviceSpec spec = DeviceSpec::parse("/job:worker/replica:0/task:1/device:CPU:0");
  EXPECT_EQ(spec.job, "worker");
  EXPECT_EQ(spec.replica, 0);
  EXPECT_EQ(spec.task, 1);
  EXPECT_EQ(spec.type, "CPU");
  EXPECT_EQ(spec.index, 0);
  EXPECT_EQ(DeviceSpec::parse("/task:1/cpu:0/job:worker/replica:0"), spec) << "in any order";
}

TEST(DeviceSpec, LeavesMissingPartsAndStarsEmpty) {
  EXPECT_EQ(DeviceSpec::parse(""), DeviceSpec{});
  EXPECT_EQ(DeviceSpec::parse("/"), DeviceSpec{});
  EXPECT_EQ(DeviceSpec::parse("/job:ps"), (DeviceSpec{.job = "ps"}));
  EXPECT_EQ(DeviceSpec::parse("/task:2"), (DeviceSpec{.task = 2}));
  EXPECT_EQ(DeviceSpec::parse("CPU"), (DeviceSpec{.type = "CPU"}));
  EXPECT_EQ(DeviceSpec::parse("GPU:*"), (DeviceSpec{.type = "GPU"}));
  EXPECT_EQ(DeviceSpec::parse("/device:*:1"), (DeviceSpec{.index = 1}));
  EXPECT_EQ(DeviceSpec::parse("/job:*/task:1"), (DeviceSpec{.task = 1}));
  EXPECT_EQ(DeviceSpec::parse("/job:a/replica:*/task:*/device:*:*"), (DeviceSpec{.job = "a"}));
}

TEST(DeviceSpec, PrintsWhatItHas) {
  for (const char* text :
       {"/job:worker/replica:0/task:1/device:CPU:0", "/job:ps", "/task:3", "/replica:2",
        "/device:GPU:*", "/device:*:4", "/job:a/device:TPU:1", ""}) {
    EXPECT_EQ(DeviceSpec::parse(text).to_string(), text);
    EXPECT_EQ(message(DeviceSpec::parse(text)), text);
  }
  EXPECT_EQ(DeviceSpec::parse("/gpu:1").to_string(), "/device:GPU:1");
  EXPECT_EQ(DeviceSpec::parse("/job:w/cpu:3").short_name(), "CPU:3");
  EXPECT_EQ(DeviceSpec{}.short_name(), "*:*");
}

TEST(DeviceSpec, CanonicalFillsWhatIsMissing) {
  EXPECT_EQ(DeviceSpec::canonical("").to_string(), "/job:localhost/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(DeviceSpec::canonical("/gpu:2").to_string(),
            "/job:localhost/replica:0/task:0/device:GPU:2");
  EXPECT_EQ(DeviceSpec::canonical("GPU").to_string(),
            "/job:localhost/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(DeviceSpec::canonical("/job:worker/task:1").to_string(),
            "/job:worker/replica:0/task:1/device:CPU:0");
}

TEST(DeviceSpec, MergingOverwritesTheFieldsThatTheOtherHas) {
  const DeviceSpec base = DeviceSpec::parse("/job:worker/replica:1/task:2/device:CPU:3");
  const auto merged = [&](const char* other) {
    return base.merged_with(DeviceSpec::parse(other)).to_string();
  };
  EXPECT_EQ(merged(""), base.to_string());
  EXPECT_EQ(merged("/job:ps"), "/job:ps/replica:1/task:2/device:CPU:3");
  EXPECT_EQ(merged("/replica:0"), "/job:worker/replica:0/task:2/device:CPU:3");
  EXPECT_EQ(merged("/task:0"), "/job:worker/replica:1/task:0/device:CPU:3");
  EXPECT_EQ(merged("GPU"), "/job:worker/replica:1/task:2/device:GPU:3");
  EXPECT_EQ(merged("/device:*:0"), "/job:worker/replica:1/task:2/device:CPU:0");
  EXPECT_EQ(DeviceSpec{}.merged_with(base), base);
}

TEST(DeviceSpec, MatchesAPatternOfTheFieldsItHas) {
  const DeviceSpec spec = DeviceSpec::canonical("/job:worker/task:1/device:CPU:2");
  const auto matches = [&](const char* pattern) {
    return spec.matches(DeviceSpec::parse(pattern));
  };
  for (const char* pattern : {"", "/job:worker", "/task:1", "cpu", "CPU:2", "/device:*:2",
                              "/job:worker/replica:0/task:1/device:CPU:2"}) {
    EXPECT_TRUE(matches(pattern)) << pattern;
  }
  for (const char* pattern : {"/job:ps", "/task:0", "/replica:1", "gpu", "CPU:1", "/device:*:0"}) {
    EXPECT_FALSE(matches(pattern)) << pattern;
  }
  EXPECT_FALSE(DeviceSpec{}.matches(spec)) << "a missing field is not a match";
}

TEST(DeviceSpec, NamesTheTextAndThePartThatItCannotRead) {
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/job:worker/XPU:0"), kInvalid,
                     "DeviceSpec: cannot read \"/job:worker/XPU:0\"",
                     "\"XPU:0\" is not one of job, replica, task, device, CPU, GPU, TPU",
                     "Write for example \"CPU:0\", \"/gpu:1\"");
}

TEST(DeviceSpec, RejectsMalformedNumbers) {
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("CPU:x"), kInvalid,
                     "\"x\" in \"CPU:x\" is not a non-negative integer");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("CPU:-1"), kInvalid, "\"-1\" in \"CPU:-1\"");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("CPU:1a"), kInvalid, "\"1a\" in \"CPU:1a\"");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("CPU: 1"), kInvalid, "\" 1\" in \"CPU: 1\"");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("GPU:"), kInvalid, "\"\" in \"GPU:\"");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("GPU:99999999999"), kInvalid, "\"99999999999\"");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/task:one"), kInvalid, "\"one\" in \"task:one\"");
}

TEST(DeviceSpec, RejectsMalformedParts) {
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/device:CPU"), kInvalid,
                     "\"device:CPU\" is not device:TYPE:INDEX");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/device:CPU:0:1"), kInvalid,
                     "\"device:CPU:0:1\" is not device:TYPE:INDEX");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/device::0"), kInvalid, "\"device::0\" has no device type");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("CPU:0:1"), kInvalid, "\"CPU:0:1\" is not TYPE:INDEX");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/replica"), kInvalid, "\"replica\" is not replica:NUMBER");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/task:1:2"), kInvalid, "\"task:1:2\" is not task:NUMBER");
  for (const char* text : {"/job", "/job:", "/job:a b", "/job:a:b"}) {
    EXPECT_TUTTI_ERROR(DeviceSpec::parse(text), kInvalid,
                       "is not job:NAME with letters, digits and _");
  }
}

TEST(DeviceSpec, RejectsDuplicateParts) {
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("CPU:0/GPU:0"), kInvalid, "the device is given twice");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/job:a/job:a"), kInvalid, "the job is given twice");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/task:1/task:2"), kInvalid, "the task is given twice");
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/replica:1/replica:1"), kInvalid,
                     "the replica is given twice");
  // The index alone counts as a device, too.
  EXPECT_TUTTI_ERROR(DeviceSpec::parse("/device:*:1/CPU:2"), kInvalid, "the device is given twice");
}

}  // namespace
}  // namespace tutti
