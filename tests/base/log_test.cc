// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/log.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/thread.h"

#include "tests/support/log_capture.h"

namespace tutti {
namespace {

using test::LogCapture;

TEST(Log, ASinkGetsTheLineAndItsLevelWithoutANewline) {
  const LogCapture capture;
  log(LogLevel::kWarning, "one event");
  ASSERT_EQ(capture.lines().size(), 1u);
  EXPECT_EQ(capture.lines()[0].level, LogLevel::kWarning);
  EXPECT_EQ(capture.lines()[0].text, "one event");
}

TEST(Log, LinesBelowTheLevelAreDropped) {
  const std::vector<LogLevel> all = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                                     LogLevel::kError};
  for (size_t lowest = 0; lowest < all.size(); ++lowest) {
    const LogCapture capture(all[lowest]);
    EXPECT_EQ(log_level(), all[lowest]);
    for (const LogLevel level : all) log(level, "line");
    ASSERT_EQ(capture.lines().size(), all.size() - lowest);
    EXPECT_EQ(capture.lines()[0].level, all[lowest]);
  }
}

TEST(Log, OffDropsEverything) {
  const LogCapture capture(LogLevel::kOff);
  log(LogLevel::kError, "unheard");
  log(LogLevel::kOff, "off is not a level of a line");
  EXPECT_TRUE(capture.lines().empty());
}

TEST(Log, SettingASinkReturnsThePreviousOne) {
  std::vector<std::string> first;
  const LogSink original =
      set_log_sink([&first](LogLevel, const std::string& line) { first.push_back(line); });
  const LogSink returned = set_log_sink([](LogLevel, const std::string&) {});
  ASSERT_TRUE(returned);
  returned(LogLevel::kInfo, "through the returned sink");
  EXPECT_EQ(first, std::vector<std::string>{"through the returned sink"});
  EXPECT_TRUE(set_log_sink(original));
}

TEST(Log, AnEmptySinkMeansStandardError) {
  const LogSink original = set_log_sink({});
  const LogLevel level = log_level();
  set_log_level(LogLevel::kDebug);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "plain");
  log(LogLevel::kWarning, "careful");
  log(LogLevel::kError, "broken");
  log(LogLevel::kDebug, "detail");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "tutti: plain\ntutti: warning: careful\ntutti: error: broken\ntutti: debug: detail\n");
  set_log_level(level);
  set_log_sink(original);
}

TEST(Log, LinesOfManyThreadsArriveWhole) {
  const LogCapture capture;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < 4; ++t) {
    threads.push_back(std::make_unique<Thread>("logger", [t] {
      for (int i = 0; i < 100; ++i) log(LogLevel::kInfo, message("thread ", t, " line ", i, "."));
    }));
  }
  threads.clear();
  ASSERT_EQ(capture.lines().size(), 400u);
  EXPECT_EQ(capture.count("thread 3 line 99."), 1);
}

}  // namespace
}  // namespace tutti
