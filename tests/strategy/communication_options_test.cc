// SPDX-License-Identifier: Apache-2.0
//
// The communication options of a strategy and of a call, as seen by the code that uses them.

#include "tutti/values/communication_options.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/base/mutex.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/values/variable.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::communication_options_test {

using namespace std::chrono_literals;
using namespace test::variable_words;
using test::bit_equal;
using test::cpus;
using test::my_id;
using test::on_read;
using test::on_write;

class RecordingOps final : public CrossDeviceOps {
 public:
  std::vector<CommunicationOptions> seen() {
    const MutexLock lock(mutex_);
    return std::exchange(seen_, {});
  }

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override {
    const MutexLock lock(mutex_);
    seen_.push_back(options);
    at::Tensor sum = value[0].clone();
    for (size_t i = 1; i < value.size(); ++i) sum += value[i];
    return op == ReduceOp::kMean ? sum / static_cast<double>(value.size()) : sum;
  }

  Mutex mutex_;
  std::vector<CommunicationOptions> seen_ TUTTI_GUARDED_BY(mutex_);
};

TEST(CommunicationOptionsOfAStrategy, OptionsOfACallGoBeforeThoseOfTheStrategy) {
  const auto ops = std::make_shared<RecordingOps>();
  const CommunicationOptions base{.bytes_per_pack = 100, .timeout = 30s};
  const CommunicationOptions call{.bytes_per_pack = 7};
  const CommunicationOptions both{.bytes_per_pack = 7, .timeout = 30s};
  const MirroredStrategy strategy(cpus(2),
                                  {.cross_device_ops = ops, .communication_options = base});
  EXPECT_EQ(strategy.extended().communication_options(), base);
  const auto expect = [&](const CommunicationOptions& options) {
    const auto seen = ops->seen();
    EXPECT_FALSE(seen.empty());
    for (const CommunicationOptions& each : seen) EXPECT_EQ(each, options);
  };
  const auto value = PerReplica<at::Tensor>({at::ones({2}), at::ones({2})});
  strategy.extended().reduce_to(ReduceOp::kSum, value, "CPU:0");
  expect(base);
  strategy.extended().reduce_to(ReduceOp::kSum, value, value, call);
  expect(both);
  strategy.extended().batch_reduce_to<at::Tensor>(
      ReduceOp::kSum, {{value, "CPU:0"}, {value, value}}, {.timeout = 1s});
  expect({.bytes_per_pack = 100, .timeout = 1s});
  strategy.reduce(ReduceOp::kSum, value);
  expect(base);
  strategy.run([] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2})); });
  expect(base);
  strategy.run([&] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2}), call); });
  expect(both);
  const Variable v = on_write(strategy, at::ones({2}), kSum);
  strategy.run([&] { v.assign(at::ones({2})); });
  expect(base);
  const Variable metric = on_read(strategy, at::ones({2}), kMean);
  EXPECT_TRUE(bit_equal(metric.value(), at::ones({2})));
  expect(base);
  EXPECT_TUTTI_ERROR(MirroredStrategy(cpus(2), {.communication_options = {.bytes_per_pack = -1}}),
                     kInvalid, "bytes_per_pack");
}

TEST(CommunicationOptionsOfAStrategy, TheTimeoutOfTheStrategyEndsAWait) {
  const MirroredStrategy strategy(
      cpus(2), {.communication_options = {.timeout = 50ms}, .runner = {.meeting_timeout = 60s}});
  const Variable v = on_write(strategy, at::ones({2}), kSum);
  const Variable first = on_write(strategy, at::ones({2}), VariableAggregation::kOnlyFirstReplica);
  for (const Variable& each : {v, first}) {
    std::atomic<bool> failed{false};
    EXPECT_TUTTI_ERROR(strategy.run([&] {
      if (my_id() == 1) {
        EXPECT_TRUE(test::eventually([&] { return failed.load(); }));
        return;
      }
      try {
        each.assign(at::ones({2}));
      } catch (const Error&) {
        failed = true;
        throw;
      }
    }),
                       ErrorCode::kDeadlineExceeded, "assign of variable 'w'");
  }
}

}  // namespace tutti::communication_options_test
