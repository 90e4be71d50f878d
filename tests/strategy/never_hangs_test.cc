// SPDX-License-Identifier: Apache-2.0
//
// Replicas that ask for different things get an error that says which replica asked for what and
// where, long before any timeout.

#include <array>
#include <atomic>
#include <chrono>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/nest/indexed_slices.h"
#include "tutti/strategy/mirrored_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"

namespace tutti::never_hangs_test {

using namespace std::chrono_literals;
using test::cpus;
using test::my_id;

constexpr auto kAtOnce = 5s;

// The replicas would wait a minute for each other; every test ends with a run that must succeed.
class NeverHangs : public testing::TestWithParam<int> {
 protected:
  // Runs fn, which must fail immediately with an error that contains the texts.
  template <class F>
  void expect_failure(const F& fn, ErrorCode code, std::initializer_list<std::string> texts) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      strategy_.run(fn);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      for (const std::string& text : texts) {
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
            << '"' << text << "\" is not in: " << error.what();
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kAtOnce);
    const auto sums =
        strategy_.run([] { return get_replica_context()->all_reduce(ReduceOp::kSum, my_id()); });
    for (const int sum : sums) EXPECT_EQ(sum, n() * (n() - 1) / 2);
  }

  int n() const { return strategy_.num_replicas_in_sync(); }

  // GetParam() == 0: all replicas run at once; 1: one at a time.
  const MirroredStrategy strategy_{
      cpus(3), {.runner = {.concurrent_replicas = GetParam(), .meeting_timeout = 60s}}};
};

INSTANTIATE_TEST_SUITE_P(Concurrent, NeverHangs, testing::Values(0, 1, 2));

std::string here(int line) { return "never_hangs_test.cc:" + std::to_string(line); }

TEST_P(NeverHangs, DifferentShapes) {
  const int line = __LINE__ + 2;
  expect_failure(
      [] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2 + my_id() / 2})); },
      ErrorCode::kInvalidArgument,
      {"MirroredStrategy: replicas asked for different things at meeting point 1",
       "replica 0 called all_reduce(kSum) of float32[2] (" + here(line) + ")",
       "replica 1 called all_reduce(kSum) of float32[2]",
       "replica 2 called all_reduce(kSum) of float32[3] (" + here(line) + ")"});
}

TEST_P(NeverHangs, DifferentDtypes) {
  expect_failure(
      [] {
        get_replica_context()->all_reduce(ReduceOp::kSum,
                                          at::ones({2}, my_id() == 1 ? at::kInt : at::kFloat));
      },
      ErrorCode::kInvalidArgument,
      {"replica 0 called", "float32[2]", "replica 1 called", "int32[2]"});
}

TEST_P(NeverHangs, DifferentOps) {
  expect_failure(
      [] {
        const ReduceOp op = my_id() == 0 ? ReduceOp::kMean : ReduceOp::kSum;
        get_replica_context()->all_reduce(op, at::ones({2}));
      },
      ErrorCode::kInvalidArgument, {"all_reduce(kMean)", "all_reduce(kSum)"});
}

TEST_P(NeverHangs, DifferentOptions) {
  expect_failure(
      [] {
        get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({2}),
                                          {.bytes_per_pack = my_id()});
      },
      ErrorCode::kInvalidArgument, {"different things"});
}

TEST_P(NeverHangs, DifferentKinds) {
  const int line = __LINE__ + 6;
  expect_failure(
      [] {
        ReplicaContext* context = get_replica_context();
        const at::Tensor mine = at::ones({2});
        if (my_id() == 0) {
          context->all_reduce(ReduceOp::kSum, mine);
        } else if (my_id() == 1) {
          context->all_gather(mine, 0);
        } else {
          context->merge_call([](const Strategy&) {});
        }
      },
      ErrorCode::kInvalidArgument,
      {"replica 0 called all_reduce(kSum) of float32[2] (" + here(line) + ")",
       "replica 1 called all_gather(axis 0) of float32[2] (" + here(line + 2) + ")",
       "replica 2 called merge_call of "});
}

TEST_P(NeverHangs, RefusesToReduceInPlaceOnOneReplicaOnly) {
  expect_failure(
      [] {
        at::Tensor mine = at::ones({2});
        if (my_id() == 0) {
          get_replica_context()->all_reduce(ReduceOp::kSum, mine);
        } else {
          get_replica_context()->all_reduce_(ReduceOp::kSum, mine);
        }
      },
      ErrorCode::kInvalidArgument,
      {"replica 0 called all_reduce(", "replica 1 called all_reduce_("});
}

TEST_P(NeverHangs, DifferentMergeFunctions) {
  expect_failure(
      [] {
        if (my_id() == 0) {
          get_replica_context()->merge_call([](const Strategy&) { return 1; });
        } else {
          get_replica_context()->merge_call([](const Strategy&) { return 2.0; });
        }
      },
      ErrorCode::kInvalidArgument,
      {"replica 0 called merge_call of ", "replica 1 called merge_call of "});
}

TEST_P(NeverHangs, DifferentArgumentsOfAMergeFunction) {
  const auto merge = [](const Strategy&, const auto& values) { return values.size(); };
  expect_failure(
      [&] {
        if (my_id() == 0) {
          get_replica_context()->merge_call(merge, 1);
        } else {
          get_replica_context()->merge_call(merge, 1.0);
        }
      },
      ErrorCode::kInvalidArgument, {"merge_call"});
}

TEST_P(NeverHangs, DifferentTypesOfANest) {
  expect_failure(
      [] {
        ReplicaContext* context = get_replica_context();
        const at::Tensor mine = at::ones({2});
        if (my_id() == 0) {
          context->all_reduce(ReduceOp::kSum, std::pair(mine, 1.0));
        } else {
          context->all_reduce(ReduceOp::kSum, std::pair(mine, 1));
        }
      },
      ErrorCode::kInvalidArgument, {"2 leaves (float32[2], float64 scalar)", "int32 scalar"});
}

TEST_P(NeverHangs, ScalarsOfDifferentSize) {
  expect_failure(
      [] {
        if (my_id() == 0) {
          get_replica_context()->all_reduce(ReduceOp::kSum, int64_t{1});
        } else {
          get_replica_context()->all_reduce(ReduceOp::kSum, int16_t{1});
        }
      },
      ErrorCode::kInvalidArgument, {"int64 scalar", "int16 scalar"});
}

TEST_P(NeverHangs, ScalarsOfDifferentSign) {
  expect_failure(
      [] {
        if (my_id() == 0) {
          get_replica_context()->all_reduce(ReduceOp::kMax, int32_t{-1});
        } else {
          get_replica_context()->all_reduce(ReduceOp::kMax, uint32_t{1});
        }
      },
      ErrorCode::kInvalidArgument, {"int32 scalar", "uint32 scalar"});
}

TEST_P(NeverHangs, DifferentLengthsKeysAndOptionals) {
  expect_failure(
      [] {
        const std::vector<at::Tensor> mine(static_cast<size_t>(my_id()) + 1, at::ones({1}));
        get_replica_context()->all_reduce(ReduceOp::kSum, mine);
      },
      ErrorCode::kInvalidArgument, {"replica 0 called", "3 leaves"});
  expect_failure(
      [] {
        const std::map<std::string, double> mine{{my_id() == 2 ? "b" : "a", 1.0}};
        get_replica_context()->all_reduce(ReduceOp::kSum, mine);
      },
      ErrorCode::kInvalidArgument, {"different things"});
  expect_failure(
      [] {
        const std::array<std::optional<double>, 2> mine =
            my_id() == 0 ? std::array<std::optional<double>, 2>{1.0, {}}
                         : std::array<std::optional<double>, 2>{std::nullopt, 1.0};
        get_replica_context()->all_reduce(ReduceOp::kSum, mine);
      },
      ErrorCode::kInvalidArgument, {"different things"});
}

TEST_P(NeverHangs, SlicesOfDifferentRows) {
  expect_failure(
      [] {
        const IndexedSlices mine(at::ones({1, my_id() + 1}), at::zeros({1}, at::kLong));
        get_replica_context()->all_reduce(ReduceOp::kSum, mine);
      },
      ErrorCode::kInvalidArgument, {"IndexedSlices of float32[1, 1]", "float32[1, 3]"});
}

TEST_P(NeverHangs, GathersThatDoNotFit) {
  expect_failure(
      [] {
        get_replica_context()->all_gather(at::ones({2, my_id() + 1}), 0);
      },
      ErrorCode::kInvalidArgument, {"all_gather(axis 0) of float32[2, 1]", "float32[2, 2]"});
  expect_failure(
      [] {
        get_replica_context()->all_gather(at::ones({2, 2}), my_id() % 2);
      },
      ErrorCode::kInvalidArgument, {"axis 0", "axis 1"});
  expect_failure(
      [] {
        get_replica_context()->all_gather(my_id() == 0 ? at::ones({2}) : at::ones({2, 1}), 0);
      },
      ErrorCode::kInvalidArgument, {"float32[2]", "float32[2, 1]"});
}

TEST_P(NeverHangs, AReplicaThatFinishesWithoutTheCallOfTheOthers) {
  for (int quitter = 0; quitter < 3; ++quitter) {
    const int line = __LINE__ + 4;
    expect_failure(
        [&] {
          if (my_id() == quitter) return;
          get_replica_context()->all_reduce(ReduceOp::kSum, 1);
        },
        ErrorCode::kFailedPrecondition,
        {"replicas made different numbers of calls",
         "replica " + std::to_string(quitter) + " has finished (last: no meeting point yet)",
         "replica " + std::to_string((quitter + 1) % 3) +
             " waits in all_reduce, meeting point 1 at " + here(line)});
  }
}

TEST_P(NeverHangs, AReplicaThatStopsAfterSomeCalls) {
  expect_failure(
      [] {
        for (int i = 0; i < (my_id() == 1 ? 3 : 4); ++i) {
          get_replica_context()->all_reduce(ReduceOp::kSum, i);
        }
      },
      ErrorCode::kFailedPrecondition,
      {"replica 0 waits in all_reduce, meeting point 4 at never_hangs_test.cc:",
       "replica 1 has finished (last: all_reduce, meeting point 3 at never_hangs_test.cc:"});
}

TEST_P(NeverHangs, OneReplicaThatCallsWhenAllOthersHaveFinished) {
  for (int caller = 0; caller < 3; ++caller) {
    expect_failure(
        [&] {
          if (my_id() == caller) get_replica_context()->merge_call([](const Strategy&) {});
        },
        ErrorCode::kFailedPrecondition,
        {"different numbers of calls",
         "replica " + std::to_string(caller) + " waits in merge_call"});
  }
}

TEST_P(NeverHangs, ManyRepetitionsOfBothOrders) {
  for (int round = 0; round < 300; ++round) {
    const auto step = [round] {
      const bool quits = my_id() == round % 3;
      if (quits) {
        for (int i = 0; i < round % 40; ++i) std::this_thread::yield();
        return;
      }
      if (round % 2 == 0) std::this_thread::yield();
      get_replica_context()->all_reduce(ReduceOp::kSum, 1);
    };
    EXPECT_TUTTI_ERROR(strategy_.run(step), ErrorCode::kFailedPrecondition, "has finished");
  }
}

}  // namespace tutti::never_hangs_test
