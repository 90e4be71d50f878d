// SPDX-License-Identifier: Apache-2.0
//
// Tests Clock, the clock of tests, and Backoff.

#include "tutti/base/clock.h"

#include <chrono>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/backoff.h"
#include "tutti/base/thread.h"

#include "tests/support/fake_clock.h"

namespace tutti::clock_test {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::FakeClock;

TEST(SteadyClock, AgreesWithDeadlines) {
  Clock& clock = Clock::steady();
  const Deadline soon = clock.deadline_after(milliseconds(5));
  EXPECT_LE(clock.now(), soon.when());
  clock.sleep_until(soon.when());
  EXPECT_TRUE(soon.passed());
  EXPECT_TRUE(clock.passed(soon));
  EXPECT_FALSE(clock.passed(Deadline::forever()));
}

TEST(SteadyClock, ParksUntilTheWordChangesOrTheDeadlinePasses) {
  WaitWord word;
  Clock& clock = Clock::steady();
  EXPECT_FALSE(clock.park(word, 0, clock.deadline_after(milliseconds(5))));
  Thread waker("waker", [&] { word.bump(); });
  EXPECT_TRUE(clock.park(word, 0, clock.deadline_after(seconds(20))));
}

TEST(FakeClock, MovesWhenAThreadSleeps) {
  FakeClock clock;
  const Clock::Time begin = clock.now();
  clock.sleep_until(begin + hours(5));
  EXPECT_EQ(clock.now() - begin, hours(5));
  clock.sleep_until(begin);
  EXPECT_EQ(clock.now() - begin, hours(5)) << "it never goes back";
}

TEST(FakeClock, EndsAWaitWhenTheTimeHasMoved) {
  FakeClock clock;
  WaitWord word;
  const Deadline deadline = clock.deadline_after(hours(1));
  Thread other("other", [&] { clock.advance(hours(1)); });
  EXPECT_FALSE(clock.park(word, 0, deadline));
  EXPECT_TRUE(clock.passed(deadline));
}

TEST(FakeClock, EndsAWaitWhenTheWordChanges) {
  FakeClock clock;
  WaitWord word;
  Thread other("other", [&] { word.bump(); });
  EXPECT_TRUE(clock.park(word, 0, clock.deadline_after(milliseconds(1))));
}

TEST(Deadline, CanBeginAtAnyTime) {
  const Clock::Time begin{};
  const Deadline deadline = Deadline::after(seconds(2), begin);
  EXPECT_FALSE(deadline.passed(begin + milliseconds(1999)));
  EXPECT_TRUE(deadline.passed(begin + seconds(2)));
  EXPECT_FALSE(Deadline::after(hours(24 * 4000), begin).passed(Clock::Time::max()));
  EXPECT_EQ(earlier(deadline, Deadline::forever()).when(), deadline.when());
  EXPECT_EQ(earlier(Deadline::at(begin), deadline).when(), begin);
}

// ---- Backoff

TEST(Backoff, DoublesUpToTheLongestDelay) {
  Backoff backoff(milliseconds(20), milliseconds(100));
  std::vector<int64_t> delays;
  for (int i = 0; i < 5; ++i) {
    delays.push_back(std::chrono::duration_cast<milliseconds>(backoff.next()).count());
  }
  EXPECT_EQ(delays, (std::vector<int64_t>{20, 40, 80, 100, 100}));
  backoff.reset();
  EXPECT_EQ(backoff.next(), milliseconds(20));
}

TEST(Backoff, SleepsAsLongAsThereIsTimeForAnotherAttempt) {
  FakeClock clock;
  const Clock::Time begin = clock.now();
  const Deadline deadline = clock.deadline_after(seconds(1));
  Backoff backoff(milliseconds(100), milliseconds(400), clock);
  int attempts = 1;
  for (; backoff.ends_before(deadline); ++attempts) backoff.sleep();
  EXPECT_EQ(attempts, 4) << "after 0, 100, 300 and 700 ms";
  EXPECT_EQ(clock.now() - begin, milliseconds(700));
  EXPECT_TRUE(backoff.ends_before(Deadline::forever()));
}

TEST(Backoff, LimitsADelay) {
  FakeClock clock;
  Backoff backoff(seconds(1), seconds(8), clock);
  EXPECT_EQ(backoff.next(Deadline::forever()).when(), clock.now() + seconds(1));
  EXPECT_EQ(backoff.next(clock.deadline_after(seconds(1))).when(), clock.now() + seconds(1));
  EXPECT_EQ(backoff.next(Deadline::forever()).when(), clock.now() + seconds(4));
}

}  // namespace tutti::clock_test
