// SPDX-License-Identifier: Apache-2.0
//
// Replicas that wait for long log it, and eventually give up.

#include <atomic>
#include <chrono>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/strategy/mirrored_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::meeting_deadline_test {

using namespace std::chrono_literals;
using test::cpus;
using test::eventually;
using test::my_id;

std::string line_of(const test::LogCapture& log, const std::string& part) {
  for (const test::LogLine& line : log.lines()) {
    if (line.text.find(part) != std::string::npos && line.level == LogLevel::kWarning) {
      return line.text;
    }
  }
  return "no warning with \"" + part + "\" in:\n" + log.text();
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n  is not in\n" << text;
}

// Replica 0 waits in a meeting until it gets an error; replica 1 computes until then.
template <class Meet>
void expect_deadline(const Strategy& strategy, const Meet& meet,
                     std::initializer_list<std::string_view> parts) {
  std::atomic<bool> failed = false;
  EXPECT_TRUE(test::throws_error(
      [&] {
        strategy.run([&] {
          if (my_id() != 0) {
            EXPECT_TRUE(eventually([&] { return failed.load(); }));
            return;
          }
          try {
            meet();
          } catch (...) {
            failed.store(true);
            throw;
          }
        });
      },
      ErrorCode::kDeadlineExceeded, parts));
  const auto sums =
      strategy.run([] { return get_replica_context()->all_reduce(ReduceOp::kSum, 1); });
  EXPECT_EQ(sums[0], strategy.num_replicas_in_sync());
}

TEST(MeetingDeadline, TheLimitOfTheStrategyIsKept) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.meeting_timeout = 100ms}});
  expect_deadline(strategy,
                  [] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({3})); },
                  {"MirroredStrategy: replica 0 waited 0.1 s in all_reduce(kSum) of float32[3]",
                   "replica 0 waits in all_reduce, meeting point 1 at meeting_deadline_test.cc:",
                   "replica 1 is computing (last: no meeting point yet)", "raise meeting_timeout"});
  expect_deadline(strategy, [] { get_replica_context()->merge_call([](const Strategy&) {}); },
                  {"replica 0 waited 0.1 s in merge_call"});
}

TEST(MeetingDeadline, TheLimitIsKeptWhenReplicasTakeTurns) {
  const MirroredStrategy strategy(cpus(3),
                                  {.runner = {.concurrent_replicas = 2, .meeting_timeout = 50ms}});
  std::atomic<bool> failed = false;
  EXPECT_TUTTI_ERROR(strategy.run([&] {
    if (my_id() == 1) {  // keeps its turn until another caller has given up
      EXPECT_TRUE(eventually([&] { return failed.load(); }));
    }
    try {
      get_replica_context()->all_reduce(ReduceOp::kSum, 1);
    } catch (...) {
      failed.store(true);
      throw;
    }
  }),
                     ErrorCode::kDeadlineExceeded, "waited 0.05 s in all_reduce",
                     "replica 1 is computing");
}

TEST(MeetingDeadline, TheLimitOfACallIsKept) {
  const MirroredStrategy strategy(cpus(2));
  expect_deadline(
      strategy, [] { get_replica_context()->all_reduce(ReduceOp::kSum, 1, {.timeout = 50ms}); },
      {"waited 0.05 s in all_reduce(kSum) of int32 scalar", "CommunicationOptions::timeout"});
  expect_deadline(strategy,
                  [] { get_replica_context()->all_gather(at::ones({1}), 0, {.timeout = 50ms}); },
                  {"waited 0.05 s in all_gather(axis 0) of float32[1]"});
}

TEST(MeetingDeadline, ACallMayWaitLongerThanTheStrategyAllows) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.meeting_timeout = 20ms}});
  const auto sums = strategy.run([] {
    if (my_id() == 1) {
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_TRUE(eventually([&] { return std::chrono::steady_clock::now() - begin > 100ms; }));
    }
    return get_replica_context()->all_reduce(ReduceOp::kSum, 1, {.timeout = 60s});
  });
  EXPECT_EQ(sums[0], 2);
}

TEST(MeetingDeadline, AReplicaThatComesTooLateFailsToo) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.meeting_timeout = 50ms}});
  std::atomic<bool> failed = false;
  std::atomic<int> late_code = -1;
  EXPECT_THROW(strategy.run([&] {
    if (my_id() == 1) {
      EXPECT_TRUE(eventually([&] { return failed.load(); }));
      try {
        get_replica_context()->all_reduce(ReduceOp::kSum, 1);
      } catch (const Error& error) {
        late_code.store(static_cast<int>(error.code()));
        throw;
      }
      return;
    }
    try {
      get_replica_context()->all_reduce(ReduceOp::kSum, 1);
    } catch (...) {
      failed.store(true);
      throw;
    }
  }),
               Error);
  EXPECT_EQ(late_code.load(), static_cast<int>(ErrorCode::kDeadlineExceeded));
}

TEST(MeetingDeadline, BadLimitsOfACallAreErrors) {
  const MirroredStrategy strategy(cpus(2));
  for (const auto limit : {0ms, -5ms}) {
    EXPECT_TUTTI_ERROR(strategy.run([limit] {
      get_replica_context()->all_reduce(ReduceOp::kSum, 1, {.timeout = limit});
    }),
                       ErrorCode::kInvalidArgument, "timeout is",
                       std::to_string(limit.count()) + " ms");
    EXPECT_TUTTI_ERROR(strategy.run([limit] {
      get_replica_context()->all_gather(at::ones({1}), 0, {.timeout = limit});
    }),
                       ErrorCode::kInvalidArgument, "timeout is");
  }
}

TEST(MeetingDeadline, ALongWaitIsLoggedOnceWithWhereEveryReplicaIs) {
  const MirroredStrategy strategy(cpus(3), {.runner = {.meeting_warning = 50ms}});
  const test::LogCapture log;
  const auto sums = strategy.run([&] {
    get_replica_context()->merge_call([](const Strategy&) {});
    if (my_id() == 2) {
      EXPECT_TRUE(eventually([&] { return log.count("has waited") == 2; }));
    }
    return get_replica_context()->all_reduce(ReduceOp::kSum, 1);
  });
  EXPECT_EQ(sums[1], 3);
  const std::string line = line_of(log, "has waited");
  expect_contains(line, "MirroredStrategy: all_reduce has waited for 0.05 s");
  expect_contains(line, "waits in all_reduce, meeting point 2 at meeting_deadline_test.cc:");
  expect_contains(line, "replica 2 is computing (last: merge_call, meeting point 1");
  EXPECT_EQ(log.count("has waited"), 2) << log.text();  // once by each waiting replica
}

TEST(MeetingDeadline, ALongLastReplicaIsLogged) {
  const MirroredStrategy strategy(cpus(2), {.runner = {.meeting_warning = 50ms}});
  const test::LogCapture log;
  strategy.run([&] {
    if (my_id() == 1) {
      EXPECT_TRUE(eventually([&] { return log.count("still waiting") == 1; }));
    }
  });
  const std::string line = line_of(log, "still waiting");
  expect_contains(line, "MirroredStrategy::run: still waiting after 0.05 s");
  expect_contains(line, "replica 0 has finished");
  expect_contains(line, "replica 1 is computing");
}

TEST(MeetingDeadline, QuickMeetingsLogNothing) {
  const MirroredStrategy strategy(cpus(2));
  const test::LogCapture log;
  for (int i = 0; i < 100; ++i) {
    strategy.run([] { return get_replica_context()->all_reduce(ReduceOp::kSum, 1); });
  }
  EXPECT_EQ(log.lines().size(), 0U) << log.text();
}

}  // namespace tutti::meeting_deadline_test
