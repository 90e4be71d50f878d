// SPDX-License-Identifier: Apache-2.0
//
// The lines that ReductionToOneDevice writes the first ten times in a process.

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/collectives/reduction_to_one_device.h"

#include "tests/support/log_capture.h"
#include "tests/support/team.h"

namespace tutti {
namespace {

const std::string kReduce = "Reduce to CPU:0 then broadcast to (CPU:0, CPU:1).";

TEST(ReductionLog, ReduceIsLoggedTenTimesInAProcess) {
  const test::LogCapture log;
  const PerReplica<at::Tensor> value({at::ones({2}), at::ones({2})});
  for (int i = 0; i < 12; ++i) {
    ReductionToOneDevice ops;  // the count is that of the process
    ops.reduce(ReduceOp::kSum, value, value);
  }
  EXPECT_EQ(log.count(kReduce), 10) << log.text();
  EXPECT_EQ(log.lines().size(), 10u);
  EXPECT_EQ(log.lines()[0].level, LogLevel::kInfo);
}

TEST(ReductionLog, NamesTheDeviceThatReduces) {
  const test::LogCapture log;
  const PerReplica<at::Tensor> value({at::ones({2}), at::ones({2})});
  ReductionToOneDevice ops("CPU:3");
  ops.reduce(ReduceOp::kSum, value, "CPU:1");
  ops.reduce(ReduceOp::kSum, value, value);
  ReductionToOneDevice().reduce(ReduceOp::kSum, value, "CPU:1");
  const auto lines = log.lines();
  ASSERT_EQ(lines.size(), 3u) << log.text();
  EXPECT_EQ(lines[0].text, "Reduce to CPU:3 then broadcast to (CPU:1).");
  EXPECT_EQ(lines[1].text, "Reduce to CPU:3 then broadcast to (CPU:0, CPU:1).");
  EXPECT_EQ(lines[2].text, "Reduce to CPU:1 then broadcast to (CPU:1).");
}

TEST(ReductionLog, GatherHasACountOfItsOwn) {
  const test::LogCapture log;
  const PerReplica<at::Tensor> value({at::ones({2}), at::ones({2})});
  ReductionToOneDevice ops;
  for (int i = 0; i < 12; ++i) ops.gather(value, value, 0);
  EXPECT_EQ(log.count("Gather to CPU:0 then broadcast to (CPU:0, CPU:1)."), 10) << log.text();
  ops.reduce(ReduceOp::kSum, value, value);
  EXPECT_EQ(log.count(kReduce), 1);
}

TEST(ReductionLog, ReplicasLogTenTimesInAll) {
  const test::LogCapture log;
  ReductionToOneDevice ops;
  test::TensorGrid grid = {{at::ones({2}), at::ones({3})}, {at::ones({2}), at::ones({3})}};
  for (int i = 0; i < 12; ++i) {
    test::all_reduce(ops, ReduceOp::kSum, grid, grid, {}, {.members = 2, .threads = true});
  }
  EXPECT_EQ(log.count(kReduce), 10) << log.text();
}

}  // namespace
}  // namespace tutti
