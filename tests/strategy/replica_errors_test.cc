// SPDX-License-Identifier: Apache-2.0
//
// What happens when a replica throws: the others are released, run throws the cause with its type,
// and the strategy works afterwards.

#include <atomic>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <typeindex>
#include <typeinfo>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/strategy/mirrored_strategy.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"

namespace tutti::replica_errors_test {

using namespace std::chrono_literals;
using test::cpus;
using test::eventually;
using test::my_id;

struct NoStdException {
  int number;
};

// The parameter is how many replicas run at once; 0: all.
class ReplicaErrors : public testing::TestWithParam<int> {
 protected:
  ~ReplicaErrors() override {
    const auto sums =
        strategy_.run([] { return get_replica_context()->all_reduce(ReduceOp::kSum, my_id()); });
    for (const int sum : sums) EXPECT_EQ(sum, 3);
  }

  const MirroredStrategy strategy_{
      cpus(3), {.runner = {.concurrent_replicas = GetParam(), .meeting_timeout = 60s}}};
};

INSTANTIATE_TEST_SUITE_P(Concurrent, ReplicaErrors, testing::Values(0, 1, 2));

TEST_P(ReplicaErrors, StandardExceptionsKeepTheirType) {
  for (int thrower = 0; thrower < 3; ++thrower) {
    try {
      strategy_.run([thrower] {
        if (my_id() == thrower) throw std::out_of_range("index " + std::to_string(thrower));
        get_replica_context()->all_reduce(ReduceOp::kSum, 1);
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::out_of_range& error) {
      EXPECT_EQ(error.what(), "index " + std::to_string(thrower));
    }
  }
}

// Matches the class itself, not one of its base classes.
template <class F>
std::type_index thrown_type(const F& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return typeid(error);
  }
  return typeid(void);
}

TEST_P(ReplicaErrors, LibTorchErrorsKeepTheirType) {
  const auto type_out_of_run = [&](void (*fail)()) {
    return thrown_type([&] {
      strategy_.run([&] {
        if (my_id() == 1) fail();
        get_replica_context()->all_reduce(ReduceOp::kSum, 1);
      });
    });
  };
  const auto multiply = [] { at::mm(at::ones({2, 3}), at::ones({2, 3})); };
  const auto select = [] { at::ones({2}).select(0, 5); };
  ASSERT_TRUE(thrown_type(select) == typeid(c10::IndexError)) << "outside of run()";
  EXPECT_TRUE(type_out_of_run(multiply) == typeid(c10::Error));
  EXPECT_TRUE(type_out_of_run(select) == typeid(c10::IndexError));
}

TEST_P(ReplicaErrors, LibTorchErrorsNameReplicaAndStep) {
  strategy_.run([] {});
  for (const bool subclass : {false, true}) {
    std::string text;
    try {
      strategy_.run([&] {
        if (my_id() == 1 && subclass) at::ones({2, 3}).select(0, 7);
        if (my_id() == 1) at::mm(at::ones({2, 3}), at::ones({2, 3}));
        get_replica_context()->all_reduce(ReduceOp::kSum, 1);
      });
    } catch (const c10::IndexError& error) {
      EXPECT_TRUE(subclass);
      text = error.what();
    } catch (const c10::Error& error) {
      EXPECT_FALSE(subclass);
      text = error.what();
    }
    const std::string place = message("In replica 1 of ", strategy_.num_replicas_in_sync(),
                                      ", step ", subclass ? 3 : 2, " of MirroredStrategy::run");
    EXPECT_NE(text.find(place), std::string::npos) << text;
  }
}

TEST_P(ReplicaErrors, TypesOutsideTheStandardHierarchyAreKept) {
  try {
    strategy_.run([] {
      if (my_id() == 2) throw NoStdException{42};
      get_replica_context()->merge_call([](const Strategy&) {});
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const NoStdException& error) {
    EXPECT_EQ(error.number, 42);
  }
}

TEST_P(ReplicaErrors, TheLowestReplicaThatWasNotReleasedWins) {
  std::atomic<int> thrown = 0;
  try {
    strategy_.run([&] {
      if (my_id() == 0) get_replica_context()->all_reduce(ReduceOp::kSum, 1);
      thrown.fetch_add(1);
      throw std::out_of_range("replica " + std::to_string(my_id()));
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "replica 1");
  }
  EXPECT_EQ(thrown.load(), 2);
}

TEST_P(ReplicaErrors, OthersAreReleasedWithACancellationThatNamesTheCause) {
  std::atomic<int> released = 0;
  EXPECT_THROW(strategy_.run([&] {
    if (my_id() == 2) throw std::out_of_range("the cause");
    try {
      get_replica_context()->all_gather(at::ones({1}), 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCancelled);
      const std::string text = error.what();
      EXPECT_NE(text.find("MirroredStrategy::run: released because replica 2 failed: the cause"),
                std::string::npos)
          << text;
      released.fetch_add(1);
      throw;
    }
  }),
               std::out_of_range);
  EXPECT_EQ(released.load(), 2);
}

TEST_P(ReplicaErrors, AReplicaThatIgnoresItsReleaseMeetsItAgain) {
  std::atomic<int> releases = 0;
  EXPECT_THROW(strategy_.run([&] {
    if (my_id() == 1) throw std::out_of_range("the cause");
    for (int i = 0; i < 3; ++i) {
      try {
        get_replica_context()->all_reduce(ReduceOp::kSum, i);
        ADD_FAILURE() << "a replica is missing, but the meeting took place";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCancelled);
        releases.fetch_add(1);
      }
    }
  }),
               std::out_of_range);
  EXPECT_EQ(releases.load(), 6);
}

TEST_P(ReplicaErrors, AFailureAfterAMeetingDoesNotUndoIt) {
  std::atomic<int> sum = 0;
  EXPECT_THROW(strategy_.run([&] {
    sum.fetch_add(get_replica_context()->all_reduce(ReduceOp::kSum, 1));
    if (my_id() == 0) throw std::out_of_range("later");
    get_replica_context()->all_reduce(ReduceOp::kSum, 1);
  }),
               std::out_of_range);
  EXPECT_EQ(sum.load(), 9);
}

TEST_P(ReplicaErrors, AnExceptionOfAMergeFunctionReachesEveryReplica) {
  std::atomic<int> original = 0;
  std::atomic<int> cancelled = 0;
  try {
    strategy_.run([&] {
      try {
        get_replica_context()->merge_call([](const Strategy&) { throw NoStdException{7}; });
      } catch (const NoStdException&) {
        original.fetch_add(1);
        throw;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCancelled) << error.what();
        EXPECT_NE(std::string(error.what()).find("released because merge_call failed"),
                  std::string::npos)
            << error.what();
        cancelled.fetch_add(1);
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const NoStdException& error) {
    EXPECT_EQ(error.number, 7);
  }
  EXPECT_EQ(original.load(), 1);
  EXPECT_EQ(cancelled.load(), 2);
}

TEST_P(ReplicaErrors, ErrorsOfTheLibraryPassThroughWithTheirCode) {
  EXPECT_TUTTI_ERROR(strategy_.run([] {
    if (my_id() == 2) throw Error(ErrorCode::kDataLoss, "my own");
    get_replica_context()->all_reduce(ReduceOp::kSum, 1);
  }),
                     ErrorCode::kDataLoss, "my own");
}

TEST_P(ReplicaErrors, AUsersOwnCancellationIsNotTakenForARelease) {
  EXPECT_TUTTI_ERROR(strategy_.run([] {
    if (my_id() == 1) throw Error(ErrorCode::kCancelled, "stopped by the user");
    get_replica_context()->all_reduce(ReduceOp::kSum, 1);
  }),
                     ErrorCode::kCancelled, "stopped by the user");
}

TEST_P(ReplicaErrors, AnErrorThatEveryReplicaSwallowsEndsWithTheRun) {
  std::atomic<int> swallowed = 0;
  EXPECT_NO_THROW(strategy_.run([&] {
    try {
      get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({my_id() + 1}));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      swallowed.fetch_add(1);
    }
  }));
  EXPECT_EQ(swallowed.load(), 3);
}

TEST_P(ReplicaErrors, BackwardOutsideOfRunIsAnError) {
  auto losses = strategy_.run([] {
    const at::Tensor x = at::ones({2}).requires_grad_(true);
    return get_replica_context()->all_reduce(ReduceOp::kSum, x).sum();
  });
  EXPECT_TUTTI_ERROR(losses[0].backward(), ErrorCode::kFailedPrecondition, "all_reduce",
                     "inside Strategy::run");
  auto gathered = strategy_.run([] {
    const at::Tensor x = at::ones({2}).requires_grad_(true);
    return get_replica_context()->all_gather(x, 0).sum();
  });
  const Scope scope = strategy_.scope();
  EXPECT_TUTTI_ERROR(gathered[1].backward(), ErrorCode::kFailedPrecondition, "all_gather",
                     "cross-replica context");
}

TEST_P(ReplicaErrors, BackwardOnTheWrongReplicaIsAnError) {
  auto losses = strategy_.run([] {
    const at::Tensor x = at::ones({2}).requires_grad_(true);
    return get_replica_context()->all_reduce(ReduceOp::kSum, x).sum();
  });
  EXPECT_TUTTI_ERROR(
      strategy_.run([&] { losses[static_cast<size_t>(my_id() + 1) % 3].backward(); }),
      ErrorCode::kFailedPrecondition, "the context of another replica");
}

// One random run: some operations, and perhaps a failure somewhere.
struct Plan {
  std::vector<int> operations;
  int64_t size;  // of the tensors: small, or large enough to be reduced by all replicas together
  int failing_replica;
  size_t failing_step;
  int failure;  // 0: none, 1: throws, 2: leaves out a call, 3: asks for another shape

  explicit Plan(std::mt19937& random)
      : operations(1 + random() % 3),
        size(random() % 4 == 0 ? 6000 : 3),
        failing_replica(static_cast<int>(random() % 3)),
        failing_step(random() % operations.size()),
        failure(random() % 2 == 0 ? 0 : 1 + static_cast<int>(random() % 3)) {
    for (int& each : operations) each = static_cast<int>(random() % 4);
  }

  // The result of replica `id`, which is the same on all.
  int64_t operator()(int id) const {
    ReplicaContext* context = get_replica_context();
    int64_t total = 0;
    for (size_t step = 0; step < operations.size(); ++step) {
      int64_t mine_size = size;
      if (id == failing_replica && step == failing_step) {
        if (failure == 1) throw std::out_of_range("planned");
        if (failure == 2) continue;
        if (failure == 3) ++mine_size;
      }
      const at::Tensor mine = at::full({mine_size}, id + 1, at::kLong);
      if (operations[step] == 0) {
        total += context->all_reduce(ReduceOp::kSum, mine)[2].item<int64_t>();
      } else if (operations[step] == 1) {
        total +=
            context->all_gather(mine.slice(0, 1).view({1, mine_size - 1}), 0).sum().item<int64_t>();
      } else if (operations[step] == 2) {
        at::Tensor in_place = mine;
        context->all_reduce_(ReduceOp::kMax, in_place);
        total += in_place[0].item<int64_t>();
      } else {
        total += context->merge_call(
            [this](const Strategy&, const PerReplica<at::Tensor>& all) {
              int64_t sum = 0;
              for (const at::Tensor& each : all) sum += each.size(0);
              if (sum != 3 * size) throw Error(ErrorCode::kInvalidArgument, "different things");
              return sum;
            },
            mine);
      }
    }
    return total;
  }

  int64_t expected() const {
    const int64_t of_operation[] = {6, 6 * (size - 1), 3, 3 * size};
    int64_t total = 0;
    for (const int each : operations) total += of_operation[each];
    return total;
  }
};

TEST_P(ReplicaErrors, ThousandsOfRunsWithFailuresAtRandomPlacesAllEnd) {
  std::mt19937 random(static_cast<uint32_t>(20 + GetParam()));
  int failures = 0;
  for (int run = 0; run < 2000; ++run) {
    const Plan plan(random);
    try {
      const auto results = strategy_.run([&] { return plan(my_id()); });
      ASSERT_EQ(plan.failure, 0) << "run " << run << " should have failed";
      for (const int64_t result : results) ASSERT_EQ(result, plan.expected()) << "run " << run;
    } catch (const std::out_of_range&) {
      ASSERT_EQ(plan.failure, 1) << "run " << run;
      ++failures;
    } catch (const Error& error) {
      ASSERT_TRUE(plan.failure == 2 || plan.failure == 3) << "run " << run << ": " << error.what();
      ASSERT_TRUE(error.code() == ErrorCode::kInvalidArgument ||
                  error.code() == ErrorCode::kFailedPrecondition)
          << error.what();
      ++failures;
    }
  }
  EXPECT_GT(failures, 500);
  EXPECT_LT(failures, 1500);
}

}  // namespace tutti::replica_errors_test
