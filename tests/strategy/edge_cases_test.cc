// SPDX-License-Identifier: Apache-2.0
//
// Values and options at the edge of what is allowed.

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace tutti::edge_cases_test {
namespace {

MirroredStrategy two(ReplicaRunnerOptions runner = {}) {
  return MirroredStrategy({"CPU:0", "CPU:1"}, {.runner = runner});
}

at::Tensor complex_one_one() { return at::complex(at::ones({3}), at::ones({3})); }

TEST(EdgeCases, ConjugateViewsAreReducedByValue) {
  const auto strategy = two();
  const auto sums = strategy.run([] {
    const at::Tensor view = complex_one_one().conj();
    return std::tuple(get_replica_context()->all_reduce(ReduceOp::kSum, view),
                      get_replica_context()->all_reduce(ReduceOp::kSum, at::imag(view)), view);
  });
  const auto [whole, imaginary, views] = sums;
  EXPECT_TRUE(at::equal(at::imag(whole[0]), at::full({3}, -2.0)));
  EXPECT_TRUE(at::equal(imaginary[1], at::full({3}, -2.0)));
  EXPECT_TRUE(at::equal(at::imag(strategy.reduce(ReduceOp::kSum, views)), at::full({3}, -2.0)));
  EXPECT_TUTTI_ERROR(strategy.run([] {
    at::Tensor view = complex_one_one().conj();
    get_replica_context()->all_reduce_(ReduceOp::kSum, view);
  }),
                     ErrorCode::kInvalidArgument, "all_reduce_", "conjugate");
}

TEST(EdgeCases, AnEmptyListOfAxesIsNoAxis) {
  const auto strategy = two();
  const auto values = strategy.run([] { return at::arange(6.0).reshape({2, 3}); });
  const std::vector<int64_t> none;
  for (const ReduceOp op : {ReduceOp::kMean, ReduceOp::kMax}) {
    EXPECT_TRUE(at::equal(strategy.reduce(op, values, none), at::arange(6.0).reshape({2, 3})));
  }
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kSum, strategy.run([] { return at::ones({}); }), 0),
                     ErrorCode::kInvalidArgument, "has no axis");
}

TEST(EdgeCases, ReducingInPlaceIsSeenByAGraphThatSavedTheValue) {
  const auto strategy = two();
  const auto versions = strategy.run([] {
    at::Tensor x = at::ones({4});
    const auto before = x._version();
    get_replica_context()->all_reduce_(ReduceOp::kSum, x);
    return x._version() - before;
  });
  EXPECT_EQ(versions[0], 1);
  EXPECT_EQ(versions[1], 1);
}

TEST(EdgeCases, OneTensorTwiceInPlaceIsRefused) {
  const auto strategy = two();
  EXPECT_TUTTI_ERROR(strategy.run([] {
    const at::Tensor x = at::ones({4});
    std::vector<at::Tensor> list = {x, at::ones({2}), x};
    get_replica_context()->all_reduce_(ReduceOp::kSum, list);
  }),
                     ErrorCode::kInvalidArgument, "share their memory");
}

TEST(EdgeCases, AMaskBesideAValueDoesNotDisturbItsGradient) {
  const auto strategy = two();
  const auto gradients = strategy.run([] {
    at::Tensor x = at::ones({2}).requires_grad_();
    const auto [all, mask] =
        get_replica_context()->all_gather(std::tuple(x, at::ones({2}, at::kBool)), 0);
    all.sum().backward();
    return std::tuple(x.grad(), mask);
  });
  EXPECT_TRUE(at::equal(std::get<0>(gradients[0]), at::full({2}, 2.0)));
  EXPECT_EQ(std::get<1>(gradients[1]).numel(), 4);
}

TEST(EdgeCases, TheLongestTimeoutIsForEver) {
  const auto forever = std::chrono::milliseconds::max();
  const auto strategy = two({.meeting_warning = forever, .meeting_timeout = forever});
  std::atomic<bool> first_came{false};
  const auto sums = strategy.run([&] {
    ReplicaContext& context = *get_replica_context();
    if (context.replica_id_in_sync_group() == 0) {
      first_came = true;
    } else {
      while (!first_came) std::this_thread::yield();
    }
    return context.all_reduce(ReduceOp::kSum, 1.0, {.timeout = forever});
  });
  EXPECT_EQ(sums[0], 2.0);
}

TEST(EdgeCases, SparseTensorsAreRefusedWithAMessage) {
  const auto strategy = two();
  const auto sparse = strategy.run([] { return at::eye(3).to_sparse(); });
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kSum, sparse), ErrorCode::kInvalidArgument,
                     "not a dense tensor");
}

TEST(EdgeCases, AnErrorOfMergeCallNamesALineOfTheCaller) {
  const auto strategy = two();
  EXPECT_TUTTI_ERROR(strategy.run([] {
    ReplicaContext& context = *get_replica_context();
    if (context.replica_id_in_sync_group() == 0) {
      context.merge_call([](const Strategy&) {});
    } else {
      context.all_reduce(ReduceOp::kSum, 1.0);
    }
  }),
                     ErrorCode::kInvalidArgument, "merge_call of", "edge_cases_test.cc:");
}

// The caller that has waited longest is next, however busy the other caller is.
TEST(EdgeCases, ACallerOfRunIsNotStarvedByAnother) {
  const auto strategy = two();
  std::atomic<bool> stop{false};
  std::atomic<int> runs{0};
  std::thread busy([&] {
    while (!stop) {
      strategy.run([] {});
      ++runs;
    }
  });
  while (runs < 10) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    const int before = runs;
    strategy.run([] {});
    EXPECT_LE(runs - before, 1000);
  }
  stop = true;
  busy.join();
}

class UnspeakableRequest final : public MeetingRequest {
 public:
  explicit UnspeakableRequest(uint64_t kind)
      : MeetingRequest("unspeakable", CallSite::current(), Completer::kLast) {
    mark(kind);
  }
  std::string describe() const override { throw std::bad_alloc(); }
  void complete(std::span<MeetingRequest* const>) override {}
};

TEST(EdgeCases, AnErrorWhileReportingAMismatchReleasesEverybody) {
  const auto strategy = two();
  EXPECT_THROW(strategy.run([&] {
    ReplicaContext& context = *get_replica_context();
    UnspeakableRequest request(static_cast<uint64_t>(context.replica_id_in_sync_group()));
    strategy.extended().meet(context, request);
  }),
               std::bad_alloc);
  EXPECT_EQ(strategy.run([] { return get_replica_context()->all_reduce(ReduceOp::kSum, 1); })[1],
            2);
}

// Its members wait for each other, like those of NCCL.
class MeetingOps final : public CrossDeviceOps {
 private:
  at::Tensor do_reduce(ReduceOp, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions&) override {
    return value[0] + value[1];
  }
  void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override {
    if (batch.members() > 1) {
      present_.fetch_add(1);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (present_.load() % static_cast<int>(batch.members()) != 0 &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        throw Error(ErrorCode::kDeadlineExceeded, "MeetingOps: a member did not arrive");
      }
    }
    CrossDeviceOps::do_all_reduce(batch, options);
  }

  std::atomic<int> present_{0};
};

TEST(EdgeCases, MembersOfATeamRunAtTheSameTimeEvenIfReplicasTakeTurns) {
  const MirroredStrategy strategy(
      {"CPU:0", "CPU:1"},
      {.cross_device_ops = std::make_shared<MeetingOps>(), .runner = {.concurrent_replicas = 1}});
  const auto sums = strategy.run(
      [] { return get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({10'000})); });
  EXPECT_TRUE(at::equal(sums[0], at::full({10'000}, 2.F)));
  EXPECT_TRUE(at::equal(sums[1], at::full({10'000}, 2.F)));
}

}  // namespace
}  // namespace tutti::edge_cases_test
