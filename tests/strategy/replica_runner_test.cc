// SPDX-License-Identifier: Apache-2.0
//
// Where and when replicas run.

#include "tutti/strategy/replica_runner.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/device/cpu_threads.h"
#include "tutti/device/device_scope.h"
#include "tutti/strategy/mirrored_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::replica_runner_test {

using namespace std::chrono_literals;
using test::cpus;
using test::eventually;
using test::my_id;

std::string thread_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

bool thread_exists(pid_t id) {
  return std::filesystem::exists("/proc/self/task/" + std::to_string(id));
}

TEST(ReplicaRunner, RunsReplicaZeroOnTheCallingThreadAndTheOthersOnNamedThreads) {
  const MirroredStrategy strategy(cpus(3));
  const std::string mine = thread_name();
  const auto names =
      strategy.run([] { return std::pair(thread_name(), std::this_thread::get_id()); });
  EXPECT_EQ(names[0], std::pair(mine, std::this_thread::get_id()));
  EXPECT_EQ(names[1].first, "tutti/replica1");
  EXPECT_EQ(names[2].first, "tutti/replica2");
}

TEST(ReplicaRunner, UsesTheSameThreadsInEveryRun) {
  const MirroredStrategy strategy(cpus(4));
  const auto ids = [&] {
    return strategy.local_results(strategy.run([] { return std::this_thread::get_id(); }));
  };
  const auto first = ids();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ids(), first);
  EXPECT_THROW(strategy.run([] { throw 1; }), int);
  EXPECT_EQ(ids(), first);
}

TEST(ReplicaRunner, ItsThreadsEndWithTheStrategy) {
  std::optional<Strategy> strategy = MirroredStrategy(cpus(5));
  const auto ids = strategy->run([] { return gettid(); });
  for (const pid_t id : ids) EXPECT_TRUE(thread_exists(id));
  strategy.reset();
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_TRUE(eventually([&] { return !thread_exists(ids[i]); }));
  }
}

TEST(ReplicaRunner, RunsReplicasConcurrently) {
  const MirroredStrategy strategy(cpus(2));
  std::atomic<int> here = 0;
  const auto met = strategy.run([&] {
    here.fetch_add(1);
    return eventually([&] { return here.load() == 2; });
  });
  EXPECT_TRUE(met[0]);
  EXPECT_TRUE(met[1]);
}

TEST(ReplicaRunner, RunsMoreReplicasThanCoresConcurrently) {
  const int replicas = 12;
  const MirroredStrategy strategy(cpus(replicas));
  std::atomic<int> here = 0;
  const auto sums = strategy.run([&] {
    here.fetch_add(1);
    EXPECT_TRUE(eventually([&] { return here.load() == replicas; }));
    int sum = 0;
    for (int i = 0; i < 10; ++i) sum += get_replica_context()->all_reduce(ReduceOp::kSum, my_id());
    return sum;
  });
  for (const int sum : sums) EXPECT_EQ(sum, 10 * replicas * (replicas - 1) / 2);
}

TEST(ReplicaRunner, LetsReplicasTakeTurns) {
  for (const int concurrent : {1, 2, 3}) {
    const MirroredStrategy strategy(cpus(4), {.runner = {.concurrent_replicas = concurrent}});
    std::atomic<int> running = 0;
    std::atomic<int> most = 0;
    const auto work = [&] {
      const int now = running.fetch_add(1) + 1;
      int seen = most.load();
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      for (int i = 0; i < 50; ++i) std::this_thread::yield();
      running.fetch_sub(1);
    };
    for (int round = 0; round < 10; ++round) {
      const auto sums = strategy.run([&] {
        work();
        const int sum = get_replica_context()->all_reduce(ReduceOp::kSum, my_id());
        work();
        return sum;
      });
      for (const int sum : sums) EXPECT_EQ(sum, 6);
    }
    EXPECT_LE(most.load(), concurrent);
  }
}

TEST(ReplicaRunner, GivesTheSameBitsHoweverManyRunAtOnce) {
  const auto results_with = [](int concurrent) {
    const MirroredStrategy strategy(cpus(4), {.runner = {.concurrent_replicas = concurrent}});
    return strategy.run([] {
      const auto seed = static_cast<uint64_t>(my_id());
      const at::Tensor a = test::random_tensor({33, 70}, at::kFloat, seed);
      const at::Tensor b = test::random_tensor({70, 500}, at::kFloat, seed + 10);
      return get_replica_context()->all_reduce(ReduceOp::kMean, a.mm(b).tanh());
    });
  };
  const auto all = results_with(0);
  for (const int concurrent : {1, 2, 3, 4, 9}) {
    const auto some = results_with(concurrent);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(test::bit_equal(some[i], all[0]));
  }
}

TEST(ReplicaRunner, MakesTheReplicasDeviceCurrent) {
  const MirroredStrategy strategy({"CPU:3", "CPU:7"});
  const auto devices = strategy.run([] { return current_device()->short_name(); });
  EXPECT_EQ(devices[0], "CPU:3");
  EXPECT_EQ(devices[1], "CPU:7");
  EXPECT_EQ(current_device(), nullptr);
}

TEST(ReplicaRunner, CallersOfOneStrategyTakeTurns) {
  const MirroredStrategy strategy(cpus(2));
  std::atomic<int> inside[3] = {0, 0, 0};
  std::atomic<int> overlaps = 0;
  std::atomic<int> finished = 0;
  const auto caller = [&](int me) {
    for (int i = 0; i < 100; ++i) {
      const auto sums = strategy.run([&] {
        inside[me].fetch_add(1);
        for (int other = 0; other < 3; ++other) {
          if (other != me && inside[other].load() != 0) overlaps.fetch_add(1);
        }
        const int sum = get_replica_context()->all_reduce(ReduceOp::kSum, me + my_id());
        inside[me].fetch_sub(1);
        return sum;
      });
      EXPECT_EQ(sums[0], 2 * me + 1);
      EXPECT_EQ(sums[1], 2 * me + 1);
    }
    finished.fetch_add(1);
  };
  std::vector<std::thread> callers;
  for (int me = 0; me < 3; ++me) callers.emplace_back(caller, me);
  for (std::thread& each : callers) each.join();
  EXPECT_EQ(overlaps.load(), 0);
  EXPECT_EQ(finished.load(), 3);
}

TEST(ReplicaRunner, TwoStrategiesRunAtTheSameTime) {
  const MirroredStrategy first({"CPU:0", "CPU:1"});
  const MirroredStrategy second({"CPU:0", "CPU:1"});
  std::atomic<int> here = 0;
  const auto meet = [&] {
    here.fetch_add(1);
    EXPECT_TRUE(eventually([&] { return here.load() == 4; }));
    return get_replica_context()->all_reduce(ReduceOp::kSum, 1);
  };
  std::thread other([&] { EXPECT_EQ(second.run(meet)[1], 2); });
  EXPECT_EQ(first.run(meet)[0], 2);
  other.join();
}

TEST(ReplicaRunner, ACallerThatWaitsTooLongForItsTurnFails) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.meeting_timeout = 100ms}});
  std::atomic<bool> inside = false;
  std::atomic<bool> leave = false;
  std::thread other([&] {
    strategy.run([&] {
      inside.store(true);
      EXPECT_TRUE(eventually([&] { return leave.load(); }));
    });
  });
  EXPECT_TRUE(eventually([&] { return inside.load(); }));
  EXPECT_TUTTI_ERROR(strategy.run([] {}), ErrorCode::kDeadlineExceeded, "another thread", "0.1 s",
                     "take turns");
  leave.store(true);
  other.join();
  EXPECT_NO_THROW(strategy.run([] {}));
}

TEST(ReplicaRunner, RunInsideAReplicaNamesMergeCall) {
  const MirroredStrategy strategy(cpus(2));
  EXPECT_TUTTI_ERROR(strategy.run([&] { strategy.run([] {}); }), ErrorCode::kFailedPrecondition,
                     "Strategy::run", "called inside replica 0 of MirroredStrategy(CPU:0, CPU:1)",
                     "merge_call()");
  const MirroredStrategy other({"CPU:4"});
  EXPECT_TUTTI_ERROR(strategy.run([&] { other.run([] {}); }), ErrorCode::kFailedPrecondition,
                     "called inside replica 0 of MirroredStrategy(CPU:0, CPU:1)");
}

TEST(ReplicaRunner, RunInsideAMergeFunctionIsAnErrorAtOnce) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.meeting_timeout = 10s}});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TUTTI_ERROR(strategy.run([&] {
    get_replica_context()->merge_call([](const Strategy& current) { current.run([] {}); });
  }),
                     ErrorCode::kFailedPrecondition, "Strategy::run", "merge_call");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(ReplicaRunner, OneThreadOfAReplicaAtATimeMayMeet) {
  const MirroredStrategy strategy(cpus(2));
  std::atomic<int> refused = 0;
  std::atomic<int> sum = 0;
  const auto attempt = [&](ReplicaContext* context) {
    try {
      sum.fetch_add(context->all_reduce(ReduceOp::kSum, 1));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
      EXPECT_NE(std::string(error.what()).find("another thread of this replica"),
                std::string::npos);
      refused.fetch_add(1);
    }
  };
  strategy.run([&] {
    ReplicaContext* context = get_replica_context();
    if (my_id() == 1) {
      // Arrives when one of the two threads of replica 0 waits and the other was refused.
      EXPECT_TRUE(eventually([&] { return refused.load() == 1; }));
      return attempt(context);
    }
    std::thread helper([&] {
      const auto entered = context->enter();
      attempt(context);
    });
    attempt(context);
    helper.join();
  });
  EXPECT_EQ(refused.load(), 1);
  EXPECT_EQ(sum.load(), 4);
}

}  // namespace tutti::replica_runner_test
