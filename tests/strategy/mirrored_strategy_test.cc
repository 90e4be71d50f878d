// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/mirrored_strategy.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <type_traits>

#include <gtest/gtest.h>

#include "tutti/device/cpu_threads.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/contract/outside_strategy.h"
#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::mirrored_strategy_test {

using namespace std::chrono_literals;

TEST(MirroredStrategy, LogsItsDevicesAndThreads) {
  const test::LogCapture log;
  const MirroredStrategy two({"CPU:0", "/cpu:1"}, {.runner = {.threads_per_replica = 1}});
  ASSERT_EQ(log.lines().size(), 1U) << log.text();
  EXPECT_EQ(log.lines()[0].level, LogLevel::kInfo);
  const std::string cores = std::to_string(usable_cores());
  EXPECT_EQ(log.lines()[0].text,
            "Using MirroredStrategy with devices ('/job:localhost/replica:0/task:0/device:CPU:0', "
            "'/job:localhost/replica:0/task:0/device:CPU:1'); 1 thread per replica on " +
                cores + (cores == "1" ? " usable core" : " usable cores"));
  const MirroredStrategy one({"CPU:2"}, {.runner = {.threads_per_replica = 3}});
  EXPECT_EQ(log.count("('/job:localhost/replica:0/task:0/device:CPU:2'); 3 threads per replica"), 1)
      << log.text();
}

TEST(MirroredStrategy, IsMadeFromNamesAndOptions) {
  const MirroredStrategy two({"CPU:0", "CPU:1"});
  EXPECT_EQ(two.num_replicas_in_sync(), 2);
  const MirroredStrategy one({"CPU:1"});
  EXPECT_EQ(one.num_replicas_in_sync(), 1);
  const auto ops = std::make_shared<test::OutsideOps>();
  const MirroredStrategy with_ops({"CPU:0", "CPU:1", "CPU:2"}, {.cross_device_ops = ops});
  EXPECT_EQ(&with_ops.extended().cross_device_ops(), ops.get());
  const auto sums =
      with_ops.run([] { return get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2})); });
  EXPECT_TRUE(at::equal(sums[2], at::full({2}, 3.F)));
  const std::vector<std::string> names = {"CPU:3"};
  EXPECT_EQ(MirroredStrategy(names).extended().describe(), "MirroredStrategy(CPU:3)");
}

TEST(MirroredStrategy, WithoutNamesTakesEveryDevice) {
  const MirroredStrategy all;
  const size_t gpus = list_logical_devices("GPU").size();
  const size_t expected = gpus > 0 ? gpus : list_logical_devices("CPU").size();
  EXPECT_EQ(static_cast<size_t>(all.num_replicas_in_sync()), expected);
  const auto ids = all.run([] { return test::my_id(); });
  for (size_t i = 0; i < expected; ++i) EXPECT_EQ(ids[i], static_cast<int>(i));
  EXPECT_EQ(MirroredStrategy(std::vector<std::string>{}).num_replicas_in_sync(),
            all.num_replicas_in_sync());
}

TEST(MirroredStrategy, AMissingDeviceIsAnErrorThatListsWhatExists) {
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0", "CPU:16"}), ErrorCode::kNotFound,
                     "MirroredStrategy: device \"CPU:16\" does not exist", "CPU:0, CPU:1", "CPU:15",
                     "set_logical_cpu_devices(17)");
  if (list_logical_devices("GPU").empty()) {
    EXPECT_TUTTI_ERROR(MirroredStrategy({"GPU:0", "GPU:1"}), ErrorCode::kNotFound,
                       "MirroredStrategy: device \"GPU:0\" does not exist", "CPU:0", "CUDA");
    EXPECT_TUTTI_ERROR(OneDeviceStrategy("/gpu:0"), ErrorCode::kNotFound,
                       "OneDeviceStrategy: device \"GPU:0\"");
  }
}

TEST(MirroredStrategy, BadDeviceListsAreErrors) {
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0", "/cpu:0"}), ErrorCode::kInvalidArgument,
                     "MirroredStrategy", "CPU:0", "more than once");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"/job:worker/task:1/device:CPU:0"}),
                     ErrorCode::kInvalidArgument, "MirroredStrategy", "another process");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"/job:localhost/task:2/device:CPU:0"}),
                     ErrorCode::kInvalidArgument, "another process");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"TPU:0"}), ErrorCode::kUnimplemented, "TPU");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:x"}), ErrorCode::kInvalidArgument, "CPU:x");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0", "job"}), ErrorCode::kInvalidArgument, "job");
}

TEST(MirroredStrategy, BadOptionsAreErrorsThatShowTheValue) {
  const auto make = [](const ReplicaRunnerOptions& runner) {
    return MirroredStrategy({"CPU:0", "CPU:1"}, {.runner = runner});
  };
  EXPECT_TUTTI_ERROR(make({.threads_per_replica = -2}), ErrorCode::kInvalidArgument,
                     "MirroredStrategy: threads_per_replica is -2", "0 (automatic) or more");
  EXPECT_TUTTI_ERROR(make({.concurrent_replicas = -1}), ErrorCode::kInvalidArgument,
                     "concurrent_replicas is -1");
  EXPECT_TUTTI_ERROR(make({.meeting_warning = 0ms}), ErrorCode::kInvalidArgument,
                     "meeting_warning in ms is 0");
  EXPECT_TUTTI_ERROR(make({.meeting_timeout = -1ms}), ErrorCode::kInvalidArgument,
                     "meeting_timeout in ms is -1", "positive");
  EXPECT_TUTTI_ERROR(OneDeviceStrategy("CPU:0", {.threads_per_replica = -3}),
                     ErrorCode::kInvalidArgument, "OneDeviceStrategy: threads_per_replica is -3");
}

TEST(MirroredStrategy, HasNoClusterResolver) {
  EXPECT_EQ(MirroredStrategy({"CPU:0"}).cluster_resolver(), nullptr);
  EXPECT_EQ(OneDeviceStrategy("CPU:0").cluster_resolver(), nullptr);
}

TEST(MirroredStrategy, RunAfterForkIsAnError) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  strategy.run([] {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = 1;
    try {
      strategy.run([] {});
    } catch (const Error& error) {
      const bool says_fork = std::string(error.what()).find("forked") != std::string::npos;
      status = error.code() == ErrorCode::kFailedPrecondition && says_fork ? 0 : 2;
    }
    _exit(status);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NO_THROW(strategy.run([] {}));
}

TEST(Strategy, CannotBeMadeFromNothing) {
  static_assert(!std::is_default_constructible_v<Strategy>);
  static_assert(!std::is_constructible_v<Strategy, std::nullptr_t>);
  static_assert(!std::is_constructible_v<Strategy, int>);
  EXPECT_TUTTI_ERROR(Strategy(std::shared_ptr<StrategyExtended>()), ErrorCode::kInvalidArgument,
                     "Strategy", "null");
}

TEST(Strategy, ScopesStayOnTheStack) {
  static_assert(!std::is_copy_constructible_v<Scope>);
  static_assert(!std::is_move_constructible_v<Scope>);
  static_assert(!std::is_constructible_v<Scope, Strategy>);
  const auto& scope = MirroredStrategy({"CPU:0", "CPU:1"}).scope();  // keeps the strategy alive
  EXPECT_EQ(get_strategy().extended().describe(), "MirroredStrategy(CPU:0, CPU:1)");
  EXPECT_EQ(scope.strategy().num_replicas_in_sync(), 2);
}

TEST(Strategy, MixingTwoObjectsOfOneKindSaysThatTheyAreTwo) {
  const MirroredStrategy first({"CPU:0"});
  const MirroredStrategy second({"CPU:0"});
  const Scope scope = first.scope();
  EXPECT_TUTTI_ERROR(second.scope(), ErrorCode::kFailedPrecondition,
                     "MirroredStrategy(CPU:0) is not MirroredStrategy(CPU:0) (another object)");
}

TEST(Strategy, ResultsOutliveIt) {
  const auto results = MirroredStrategy({"CPU:0", "CPU:1"}).run([] {
    return get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({100'000}));
  });
  EXPECT_TRUE(at::equal(results[0], at::full({100'000}, 2.F)));
}

TEST(Strategy, AComponentOfATemporaryIsAValue) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto& component = strategy.run([] { return std::string(100, 'x'); })[1];
  EXPECT_EQ(component, std::string(100, 'x'));
  static_assert(std::is_same_v<decltype(strategy.run([] { return 1; })[0]), int>);
  static_assert(std::is_same_v<decltype(strategy.run([] { return 1; }).only()), int>);
}

TEST(Strategy, IsCurrentOnItsOwnThreadOnly) {
  const MirroredStrategy strategy({"CPU:0"});
  const Scope scope = strategy.scope();
  std::thread([] {
    EXPECT_FALSE(has_strategy());
    EXPECT_FALSE(in_cross_replica_context());
  }).join();
  EXPECT_TRUE(has_strategy());
}

TEST(Strategy, SetStrategyKeepsItAliveAndCanBeReplaced) {
  set_strategy(MirroredStrategy({"CPU:0", "CPU:1"}));
  EXPECT_EQ(get_strategy().num_replicas_in_sync(), 2);
  EXPECT_NO_THROW(get_strategy().run([] {}));
  set_strategy(MirroredStrategy({"CPU:0", "CPU:1", "CPU:2"}));
  EXPECT_EQ(get_strategy().num_replicas_in_sync(), 3);
  const OneDeviceStrategy other("CPU:0");
  EXPECT_TUTTI_ERROR(other.scope(), ErrorCode::kFailedPrecondition, "mixing different strategies");
  set_strategy(std::nullopt);
  EXPECT_FALSE(has_strategy());
}

}  // namespace tutti::mirrored_strategy_test
