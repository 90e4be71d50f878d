// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/wait_word.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/thread.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Long enough to fail only when a wake-up is lost.
Deadline generous() { return Deadline::after(seconds(20)); }

class WaitWordModes : public ::testing::TestWithParam<WaitMode> {};

INSTANTIATE_TEST_SUITE_P(WaitWord, WaitWordModes,
                         ::testing::Values(WaitMode::kSpin, WaitMode::kYield),
                         [](const auto& param_info) {
                           return param_info.param == WaitMode::kSpin ? "Spin" : "Yield";
                         });

TEST(WaitWord, StartsAtZeroAndCountsBumps) {
  WaitWord word;
  EXPECT_EQ(word.load(), 0u);
  word.bump();
  word.bump();
  EXPECT_EQ(word.load(), 2u);
}

TEST(WaitWord, AddsAndFlipsAsAsked) {
  WaitWord word;
  word.bump(5);
  EXPECT_EQ(word.load(), 5u);
  word.flip(0x80000001u);
  EXPECT_EQ(word.load(), 0x80000004u);
  word.flip(0x80000001u);
  EXPECT_EQ(word.load(), 5u);
  word.bump(0xffffffffu);
  EXPECT_EQ(word.load(), 4u) << "the word wraps";
}

TEST(WaitWord, AFlipWakesAParkedWaiter) {
  WaitWord word;
  int written = 0;
  Thread waker("waker", [&] {
    written = 7;
    word.flip(2);
  });
  ASSERT_TRUE(word.park(0, generous()));
  EXPECT_EQ(word.load(), 2u);
  EXPECT_EQ(written, 7);
}

TEST_P(WaitWordModes, ReturnsImmediatelyWhenTheWordDiffers) {
  WaitWord word;
  word.bump();
  const Deadline past = Deadline::after(milliseconds(-1));
  EXPECT_TRUE(word.poll(0, GetParam()));
  EXPECT_TRUE(word.park(0, past)) << "a change counts even after the deadline";
  EXPECT_TRUE(word.wait(0, GetParam(), past));
  EXPECT_TRUE(word.park(7, Deadline::forever())) << "any other value differs";
}

TEST_P(WaitWordModes, PollGivesUpAfterAShortWhile) {
  WaitWord word;
  const auto begin = Deadline::Clock::now();
  EXPECT_FALSE(word.poll(0, GetParam()));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(5));
}

TEST(Polling, SpinsForAtLeastATenthOfAMillisecondAndThenEnds) {
  const auto begin = Deadline::Clock::now();
  Polling spin(WaitMode::kSpin);
  while (spin.goes_on()) {
    ASSERT_LT(Deadline::Clock::now() - begin, seconds(5));
  }
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::microseconds(100));
}

TEST(Polling, YieldsAFewTimes) {
  Polling yielding(WaitMode::kYield);
  int polls = 1;
  while (yielding.goes_on()) ++polls;
  EXPECT_GT(polls, 10);
  EXPECT_LT(polls, 200);
}

TEST_P(WaitWordModes, PollsUntilAConditionHolds) {
  int polls = 0;
  EXPECT_TRUE(poll_until(GetParam(), [&] { return ++polls == 20; }));
  EXPECT_EQ(polls, 20);
  EXPECT_FALSE(poll_until(GetParam(), [] { return false; }));
}

TEST_P(WaitWordModes, WaitEndsAtTheDeadlineAndNotBefore) {
  WaitWord word;
  const Deadline deadline = Deadline::after(milliseconds(30));
  EXPECT_FALSE(word.wait(0, GetParam(), deadline));
  EXPECT_TRUE(deadline.passed());
}

TEST(WaitWord, ParkEndsAtTheDeadlineAndNotBefore) {
  WaitWord word;
  const Deadline deadline = Deadline::after(milliseconds(30));
  EXPECT_FALSE(word.park(0, deadline));
  EXPECT_TRUE(deadline.passed());
  EXPECT_FALSE(word.park(0, Deadline::after(milliseconds(-5)))) << "a deadline in the past";
}

TEST_P(WaitWordModes, ABumpEndsAWaitAndPublishesEarlierWrites) {
  WaitWord word;
  int written = 0;
  Thread waker("waker", [&] {
    written = 41;
    word.bump();
  });
  ASSERT_TRUE(word.wait(0, GetParam(), generous()));
  EXPECT_EQ(written, 41);
}

TEST(WaitWord, ABumpWakesEveryParkedWaiter) {
  WaitWord word;
  std::atomic<int> arrived{0};
  std::atomic<int> woken{0};
  {
    std::vector<std::unique_ptr<Thread>> waiters;
    for (int i = 0; i < 4; ++i) {
      waiters.push_back(std::make_unique<Thread>("waiter", [&] {
        ++arrived;
        if (word.park(0, generous())) ++woken;
      }));
    }
    const Deadline deadline = generous();
    WaitWord unused;
    // Once all have arrived, most fall asleep within a few milliseconds; asleep or not, every one
    // must return.
    while (arrived < 4 && !deadline.passed()) unused.park(0, Deadline::after(milliseconds(1)));
    unused.park(0, Deadline::after(milliseconds(20)));
    EXPECT_EQ(woken, 0);
    word.bump();
  }
  EXPECT_EQ(woken, 4);
}

// Two threads pass a counter back and forth: a lost wake-up stops them forever.
void ping_pong(WaitMode mode, bool park_only, int rounds) {
  WaitWord ping;
  WaitWord pong;
  int value = 0;  // Written by both in turn; ordered by the words alone.
  bool failed = false;
  const auto await = [&](const WaitWord& word, uint32_t seen) {
    return park_only ? word.park(seen, generous()) : word.wait(seen, mode, generous());
  };
  {
    Thread other("other", [&] {
      for (int i = 0; i < rounds; ++i) {
        if (!await(ping, static_cast<uint32_t>(i))) {
          failed = true;
          return;
        }
        ++value;
        pong.bump();
      }
    });
    for (int i = 0; i < rounds; ++i) {
      ++value;
      ping.bump();
      if (!await(pong, static_cast<uint32_t>(i))) {
        ADD_FAILURE() << "lost wake-up in round " << i;
        break;
      }
      if (value != 2 * (i + 1)) {
        ADD_FAILURE() << "saw " << value << " in round " << i;
        break;
      }
    }
    // Frees the other thread if this one gave up.
    for (int i = 0; ping.load() < static_cast<uint32_t>(rounds) && i < rounds; ++i) ping.bump();
  }
  EXPECT_FALSE(failed);
}

TEST_P(WaitWordModes, NoWakeUpIsLostBetweenTwoThreads) { ping_pong(GetParam(), false, 20000); }

TEST(WaitWord, NoWakeUpIsLostWhenBothThreadsOnlyPark) { ping_pong(WaitMode::kYield, true, 5000); }

TEST_P(WaitWordModes, NoWakeUpIsLostAmongMoreThreadsThanCores) {
  constexpr uint32_t kRounds = 500;
  constexpr int kThreads = 6;
  WaitWord begin;
  WaitWord end;
  std::atomic<int> finished{0};
  std::atomic<int> lost{0};
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(std::make_unique<Thread>("member", [&, mode = GetParam()] {
      for (uint32_t round = 0; round < kRounds; ++round) {
        if (!begin.wait(round, mode, generous())) ++lost;
        if (finished.fetch_add(1) + 1 == kThreads * static_cast<int>(round + 1)) end.bump();
      }
    }));
  }
  for (uint32_t round = 0; round < kRounds; ++round) {
    begin.bump();
    if (!end.wait(round, GetParam(), generous())) ++lost;
  }
  threads.clear();
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(finished, kThreads * static_cast<int>(kRounds));
}

}  // namespace
}  // namespace tutti
