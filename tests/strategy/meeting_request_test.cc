// SPDX-License-Identifier: Apache-2.0
//
// Meetings as a strategy's own operations use them: who completes a request, how requests are
// compared, and what a failure of one replica means for the others.

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/values/meeting.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"

namespace tutti::meeting_request_test {

using test::cpus;
using test::eventually;
using test::my_id;
using Completer = MeetingRequest::Completer;

// Counts how often it is completed; fails where requested.
class CountingRequest final : public MeetingRequest {
 public:
  CountingRequest(Completer completer, uint64_t what, CallSite site = CallSite::current())
      : MeetingRequest("counting", site, completer), what_(what) {
    mark(what);
  }

  std::string describe() const override { return "counting(" + std::to_string(what_) + ")"; }

  void complete(std::span<MeetingRequest* const> requests) override {
    EXPECT_TRUE(in_cross_replica_context());
    completed_by = std::this_thread::get_id();
    requests_seen = requests.size();
    completions.fetch_add(1);
    if (together != nullptr) {
      together->fetch_add(1);
      EXPECT_TRUE(
          eventually([&] { return together->load() == static_cast<int>(requests.size()); }));
    }
    if (fails) throw std::out_of_range("share of " + std::to_string(what_));
  }

  std::atomic<int> completions = 0;
  std::atomic<int>* together = nullptr;
  std::thread::id completed_by;
  size_t requests_seen = 0;
  bool fails = false;

 private:
  uint64_t what_;
};

void meet(const Strategy& strategy, MeetingRequest& request) {
  strategy.extended().meet(*get_replica_context(), request);
}

TEST(MeetingRequest, KFirstIsCompletedOnceOnTheRequestOfReplicaZero) {
  const MirroredStrategy strategy(cpus(3));
  for (int round = 0; round < 50; ++round) {
    const auto counts = strategy.run([&] {
      CountingRequest request(Completer::kFirst, 1);
      meet(strategy, request);
      EXPECT_EQ(request.requests_seen, my_id() == 0 ? 3U : 0U);
      return request.completions.load();
    });
    EXPECT_EQ(strategy.local_results(counts), (std::vector<int>{1, 0, 0}));
  }
}

TEST(MeetingRequest, KLastIsCompletedOnceByItsOwner) {
  const MirroredStrategy strategy(cpus(3));
  for (int round = 0; round < 50; ++round) {
    const auto counts = strategy.run([&] {
      CountingRequest request(Completer::kLast, 1);
      meet(strategy, request);
      if (request.completions.load() == 1) {
        EXPECT_EQ(request.completed_by, std::this_thread::get_id());
      }
      return request.completions.load();
    });
    EXPECT_EQ(counts[0] + counts[1] + counts[2], 1);
  }
}

TEST(MeetingRequest, KAllIsCompletedByEveryReplicaAtTheSameTime) {
  const MirroredStrategy strategy(cpus(3));
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> together = 0;
    const auto counts = strategy.run([&] {
      CountingRequest request(Completer::kAll, 1);
      request.together = &together;
      meet(strategy, request);
      EXPECT_EQ(request.completed_by, std::this_thread::get_id());
      return request.completions.load();
    });
    EXPECT_EQ(strategy.local_results(counts), (std::vector<int>{1, 1, 1}));
  }
}

TEST(MeetingRequest, NobodyLeavesBeforeAllSharesAreDone) {
  for (const int concurrent : {0, 1, 2}) {
    const MirroredStrategy strategy(cpus(4), {.runner = {.concurrent_replicas = concurrent}});
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> alive = 0;
      std::atomic<int> done = 0;
      strategy.run([&] {
        struct Share final : MeetingRequest {
          explicit Share(std::atomic<int>& done_shares)
              : MeetingRequest("share", {}, Completer::kAll), shares(done_shares) {}
          std::string describe() const override { return "share"; }
          void complete(std::span<MeetingRequest* const>) override { shares.fetch_add(1); }
          std::atomic<int>& shares;
        };
        Share share(done);
        alive.fetch_add(1);
        meet(strategy, share);
        EXPECT_EQ(done.load(), 4);
      });
      EXPECT_EQ(alive.load(), 4);
    }
  }
}

TEST(MeetingRequest, DifferentFingerprintsAreAnErrorOnEveryReplica) {
  for (const Completer completer : {Completer::kFirst, Completer::kLast, Completer::kAll}) {
    const MirroredStrategy strategy(cpus(3));
    std::atomic<int> failed = 0;
    EXPECT_TUTTI_ERROR(
        strategy.run([&] {
          CountingRequest request(completer, my_id() == 1 ? 8 : 7);
          try {
            meet(strategy, request);
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
            EXPECT_EQ(request.completions.load(), 0);
            failed.fetch_add(1);
            throw;
          }
        }),
        ErrorCode::kInvalidArgument, "replica 0 called counting(7)",
        "replica 1 called counting(8) (meeting_request_test.cc:", "replica 2 called counting(7)");
    EXPECT_EQ(failed.load(), 3);
    EXPECT_NO_THROW(strategy.run([&] {
      CountingRequest request(completer, 9);
      meet(strategy, request);
    }));
  }
}

TEST(MeetingRequest, RequestsThatWantDifferentCompletersAreAnError) {
  const MirroredStrategy strategy(cpus(2));
  for (int round = 0; round < 50; ++round) {
    EXPECT_TUTTI_ERROR(strategy.run([&] {
      CountingRequest request(my_id() == 0 ? Completer::kAll : Completer::kLast,
                              static_cast<uint64_t>(my_id()));
      meet(strategy, request);
    }),
                       ErrorCode::kInvalidArgument, "different things");
  }
}

TEST(MeetingRequest, AFailedShareReleasesTheOthersWithItsCause) {
  for (const Completer completer : {Completer::kFirst, Completer::kLast, Completer::kAll}) {
    const MirroredStrategy strategy(cpus(3));
    std::atomic<int> cancelled = 0;
    EXPECT_THROW(strategy.run([&] {
      CountingRequest request(completer, 5);
      request.fails = completer != Completer::kAll || my_id() == 2;
      try {
        meet(strategy, request);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCancelled);
        EXPECT_NE(std::string(error.what()).find("counting failed"), std::string::npos)
            << error.what();
        EXPECT_NE(std::string(error.what()).find("share of 5"), std::string::npos) << error.what();
        cancelled.fetch_add(1);
        throw;
      }
    }),
                 std::out_of_range);
    EXPECT_EQ(cancelled.load(), 2);
    EXPECT_NO_THROW(strategy.run([&] {
      CountingRequest request(completer, 6);
      meet(strategy, request);
    }));
  }
}

TEST(MeetingRequest, AMeetingOfOneIsCompleteAtOnce) {
  const MirroredStrategy strategy({"CPU:3"});
  for (const Completer completer : {Completer::kFirst, Completer::kLast, Completer::kAll}) {
    strategy.run([&] {
      CountingRequest request(completer, 1);
      meet(strategy, request);
      EXPECT_EQ(request.completions.load(), 1);
    });
    get_strategy().run([&] {
      CountingRequest request(completer, 1);
      meet(get_strategy(), request);
      EXPECT_EQ(request.completions.load(), 1);
    });
  }
}

}  // namespace tutti::meeting_request_test
