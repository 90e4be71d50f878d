// SPDX-License-Identifier: Apache-2.0
//
// What a process reads once: the affinity mask and the environment. Every case needs its
// own process.

#include <sched.h>

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"

namespace tutti {
namespace {

TEST(ProcessCores, AreThoseOfTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(usable_cores(), 1) << "read once";
}

TEST(ProcessLog, TheLevelComesFromTheEnvironment) {
  setenv("TUTTI_LOG_LEVEL", "error", 1);
  EXPECT_EQ(log_level(), LogLevel::kError);
  set_log_level(LogLevel::kDebug);
  EXPECT_EQ(log_level(), LogLevel::kDebug) << "the program takes precedence";
}

TEST(ProcessLog, WithoutAVariableTheLevelIsInfo) {
  unsetenv("TUTTI_LOG_LEVEL");
  EXPECT_EQ(log_level(), LogLevel::kInfo);
}

TEST(ProcessLog, AnUnknownLevelIsNamedAndInfoIsUsed) {
  setenv("TUTTI_LOG_LEVEL", "loud", 1);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(log_level(), LogLevel::kInfo);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("TUTTI_LOG_LEVEL is \"loud\""), std::string::npos) << said;
  EXPECT_NE(said.find("debug, info, warning, error or off"), std::string::npos) << said;
}

}  // namespace
}  // namespace tutti
