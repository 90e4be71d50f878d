// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/future.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/base/thread.h"

#include "tests/support/expect_error.h"
#include "tests/support/fake_clock.h"

namespace tutti::future_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline generous() { return Deadline::after(seconds(20)); }

TEST(Future, WaitsForTheValueOfAnotherThread) {
  Promise<std::string> promise("test");
  const Future<std::string> future = promise.future();
  EXPECT_FALSE(future.is_ready());
  Thread other("other", [&] { promise.set(5, 'x'); });
  EXPECT_EQ(future.get(generous()), "xxxxx");
  EXPECT_TRUE(future.is_ready());
  EXPECT_EQ(future.error(), nullptr);
}

TEST(Future, HoldsValuesThatCannotBeCopied) {
  Promise<std::unique_ptr<int>> promise("test");
  const auto future = promise.future();
  promise.set(std::make_unique<int>(3));
  const auto copy = future;
  EXPECT_EQ(*copy.get(generous()), 3);
  EXPECT_EQ(&copy.get(generous()), &future.get(generous())) << "copies share the value";
}

TEST(Future, MayHaveNoValue) {
  Promise<void> promise("test");
  EXPECT_TRUE(promise.set());
  promise.future().get(generous());
}

TEST(Future, ThrowsTheErrorWithItsType) {
  Promise<int> promise("test");
  const Future<int> future = promise.future();
  promise.fail(std::make_exception_ptr(std::out_of_range("far out")));
  EXPECT_THROW(static_cast<void>(future.get(generous())), std::out_of_range);
  EXPECT_THROW(static_cast<void>(future.get(generous())), std::out_of_range) << "each time";
  EXPECT_NE(future.error(), nullptr);
}

TEST(Future, SaysWhatHasNoResultAtTheDeadline) {
  test::FakeClock clock;
  Promise<int> promise("Table::pull");
  const Future<int> future = promise.future();
  const Deadline deadline = clock.deadline_after(hours(1));
  clock.advance(hours(2));
  EXPECT_FALSE(future.wait(deadline, clock));
  EXPECT_TUTTI_ERROR(static_cast<void>(future.get(deadline, clock)), ErrorCode::kDeadlineExceeded,
                     "Table::pull: there was no result before the deadline.");
  promise.set(1);
  EXPECT_EQ(future.get(deadline, clock), 1) << "a result counts even after the deadline";
}

TEST(Promise, CancelsWhenItIsDropped) {
  std::optional<Promise<int>> promise("Table::pull");
  const Future<int> future = promise->future();
  promise.reset();
  EXPECT_TUTTI_ERROR(static_cast<void>(future.get(generous())), ErrorCode::kCancelled,
                     "Table::pull: it was dropped");
}

TEST(Promise, CanBeMoved) {
  Promise<int> promise("test");
  const Future<int> future = promise.future();
  Promise<int> moved = std::move(promise);
  moved.set(2);
  EXPECT_EQ(future.get(generous()), 2);
}

TEST(Promise, KeepsTheFirstResult) {
  Promise<int> promise("test");
  EXPECT_TRUE(promise.set(1));
  EXPECT_FALSE(promise.set(2));
  EXPECT_FALSE(promise.fail(std::make_exception_ptr(std::runtime_error("too late"))));
  EXPECT_EQ(promise.future().get(generous()), 1);
}

TEST(Promise, FailsIfTheValueCannotBeMade) {
  struct Picky {
    explicit Picky(int) { throw std::invalid_argument("picky"); }
  };
  Promise<Picky> promise("test");
  EXPECT_TRUE(promise.set(1));
  EXPECT_THROW(static_cast<void>(promise.future().get(generous())), std::invalid_argument);
}

TEST(Future, CallsBackOnce) {
  Promise<int> promise("test");
  const Future<int> future = promise.future();
  std::vector<std::string> calls;
  future.on_ready([&] { calls.push_back("before " + std::to_string(future.get(generous()))); });
  EXPECT_TRUE(calls.empty());
  promise.set(7);
  promise.set(8);
  EXPECT_EQ(calls, std::vector<std::string>{"before 7"});
  future.on_ready([&] { calls.push_back("after"); });
  EXPECT_EQ(calls.size(), 2U) << "immediately";
}

TEST(Future, CallsBackWithoutALock) {
  Promise<void> promise("test");
  const Future<void> future = promise.future();
  int calls = 0;
  future.on_ready([&] { future.on_ready([&] { ++calls; }); });
  promise.set();
  EXPECT_EQ(calls, 1);
}

// The first thread fulfils the promise; waiting, asking and calling back race with it.
TEST(Future, IsSafeBetweenThreads) {
  for (int round = 0; round < 200; ++round) {
    Promise<int> promise("test");
    const Future<int> future = promise.future();
    std::atomic<int> set{0};
    std::atomic<int> called{0};
    std::atomic<int> sum{0};
    {
      Thread first("first", [&] { set += promise.set(1) ? 1 : 0; });
      Thread second("second", [&] { set += promise.set(2) ? 1 : 0; });
      Thread caller("caller", [&] {
        for (int i = 0; i < 3; ++i) future.on_ready([&] { ++called; });
      });
      Thread waiter("waiter", [&, copy = future] { sum += copy.get(generous()); });
      sum += future.get(generous());
    }
    EXPECT_EQ(set, 1);
    EXPECT_EQ(called, 3);
    EXPECT_TRUE(sum == 2 || sum == 4) << sum;
  }
}

// The waiting thread may be the last to hold the state while the other is still waking it.
TEST(Future, OutlivesItsPromise) {
  for (int round = 0; round < 200; ++round) {
    auto promise = std::make_unique<Promise<int>>("test");
    std::optional<Future<int>> future = promise->future();
    Thread other("other", [&] {
      promise->set(4);
      promise.reset();
    });
    EXPECT_EQ(future->get(generous()), 4);
    future.reset();
  }
}

}  // namespace tutti::future_test
