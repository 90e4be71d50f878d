// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_watchdog.h"

#include <chrono>
#include <future>

#include <gtest/gtest.h>

namespace tutti::internal {
namespace {

using std::chrono::milliseconds;
constexpr auto kLong = std::chrono::seconds(20);

TEST(NcclWatchdog, ActsWhenADeadlinePassesAgainAndAgain) {
  NcclWatchdog watchdog;
  for (int i = 0; i < 3; ++i) {
    std::promise<void> acted;
    const auto begin = Deadline::Clock::now();
    watchdog.watch(Deadline::after(milliseconds(10)), [&] { acted.set_value(); });
    ASSERT_EQ(acted.get_future().wait_for(kLong), std::future_status::ready);
    EXPECT_GE(Deadline::Clock::now() - begin, milliseconds(10));
  }
}

TEST(NcclWatchdog, AnEarlierDeadlineReplacesALaterOne) {
  NcclWatchdog watchdog;
  watchdog.watch(Deadline::after(std::chrono::hours(1)), [] { ADD_FAILURE() << "replaced"; });
  std::promise<void> acted;
  watchdog.watch(Deadline::after(milliseconds(1)), [&] { acted.set_value(); });
  EXPECT_EQ(acted.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(NcclWatchdog, DoesNotActAfterDismissal) {
  NcclWatchdog watchdog;
  watchdog.watch(Deadline::after(milliseconds(20)), [] { ADD_FAILURE() << "dismissed"; });
  watchdog.dismiss();
  // A later watch is acted on when the first deadline has passed as well.
  std::promise<void> acted;
  watchdog.watch(Deadline::after(milliseconds(40)), [&] { acted.set_value(); });
  EXPECT_EQ(acted.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(NcclWatchdog, EndsWhileItWatches) {
  NcclWatchdog watchdog;
  watchdog.watch(Deadline::after(std::chrono::hours(1)), [] { ADD_FAILURE(); });
}

}  // namespace
}  // namespace tutti::internal
