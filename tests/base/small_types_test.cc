// SPDX-License-Identifier: Apache-2.0
//
// Tests the small headers of base/: FunctionRef, CallSite, Deadline, read_env, Mutex.

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/call_site.h"
#include "tutti/base/deadline.h"
#include "tutti/base/env.h"
#include "tutti/base/error.h"
#include "tutti/base/function_ref.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"

namespace tutti {
namespace {

int twice(int x) { return 2 * x; }

int call_with_20(FunctionRef<int(int)> f) { return f(20); }

TEST(FunctionRef, CallsLambdasFunctionsAndConstObjects) {
  int offset = 1;
  EXPECT_EQ(call_with_20([&](int x) { return x + offset; }), 21);
  EXPECT_EQ(call_with_20(twice), 40);
  int (*pointer)(int) = twice;
  EXPECT_EQ(call_with_20(pointer), 40);
  const auto constant = [](int x) { return -x; };
  EXPECT_EQ(call_with_20(constant), -20);
}

TEST(FunctionRef, RefersToTheObjectInsteadOfCopyingIt) {
  auto counter = [n = 0](int) mutable { return ++n; };
  FunctionRef<int(int)> ref = counter;
  const FunctionRef<int(int)> copy = ref;
  EXPECT_EQ(ref(0), 1);
  EXPECT_EQ(copy(0), 2);
  EXPECT_EQ(counter(0), 3);
}

TEST(FunctionRef, PassesReferencesAndMoveOnlyValues) {
  const auto fill = [](std::string& text, std::unique_ptr<int> value) {
    text += char('0' + *value);
  };
  const FunctionRef<void(std::string&, std::unique_ptr<int>)> ref = fill;
  std::string text = "v";
  ref(text, std::make_unique<int>(7));
  EXPECT_EQ(text, "v7");
  const auto select = [&]() -> std::string& { return text; };
  const FunctionRef<std::string&()> reference = select;
  EXPECT_EQ(&reference(), &text);
}

TEST(FunctionRef, IsFalseUntilItRefersToSomething) {
  FunctionRef<void()> ref;
  EXPECT_FALSE(ref);
  const auto nothing = [] {};
  ref = nothing;
  EXPECT_TRUE(ref);
  static_assert(!std::is_constructible_v<FunctionRef<void(int)>, decltype(nothing)>);
}

TEST(CallSite, PrintsTheFileWithoutItsFolders) {
  EXPECT_EQ(message(CallSite{"/home/a/project/train.cc", 41}), "train.cc:41");
  EXPECT_EQ(message(CallSite{"train.cc", 7}), "train.cc:7");
  EXPECT_EQ(message(CallSite{}), ":0");
}

CallSite called(CallSite site = CallSite::current()) { return site; }

TEST(CallSite, AsADefaultArgumentNamesTheCallersLine) {
  const CallSite site = called();
  EXPECT_EQ(message(site), message("small_types_test.cc:", __LINE__ - 1));
}

TEST(Deadline, PassesWhenItsTimeIsReached) {
  EXPECT_FALSE(Deadline::after(std::chrono::hours(1)).passed());
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds(0)).passed());
  EXPECT_TRUE(Deadline::after(std::chrono::seconds(-1)).passed());
}

TEST(Deadline, ForeverNeverPasses) {
  EXPECT_FALSE(Deadline::forever().passed());
  EXPECT_EQ(Deadline::forever().when(), Deadline::Clock::time_point::max());
}

TEST(Deadline, AtKeepsThePointInTime) {
  const auto when = Deadline::Clock::now() + std::chrono::minutes(5);
  EXPECT_EQ(Deadline::at(when).when(), when);
  EXPECT_FALSE(Deadline::at(when).passed());
  EXPECT_TRUE(Deadline::at(Deadline::Clock::time_point()).passed());
}

TEST(ReadEnv, TreatsAnEmptyVariableAsUnset) {
  const char* name = "TUTTI_TEST_READ_ENV";
  unsetenv(name);
  EXPECT_EQ(read_env(name), std::nullopt);
  setenv(name, "", 1);
  EXPECT_EQ(read_env(name), std::nullopt);
  setenv(name, "a value", 1);
  EXPECT_EQ(read_env(name), "a value");
  unsetenv(name);
}

TEST(HasEnv, IsTrueForAnEmptyVariable) {
  const char* name = "TUTTI_TEST_HAS_ENV";
  unsetenv(name);
  EXPECT_FALSE(has_env(name));
  setenv(name, "", 1);
  EXPECT_TRUE(has_env(name));
  setenv(name, "a value", 1);
  EXPECT_TRUE(has_env(name));
  unsetenv(name);
}

TEST(Mutex, ExcludesOtherThreads) {
  Mutex mutex;
  int count = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  for (int t = 0; t < 3; ++t) {
    threads.push_back(std::make_unique<Thread>("adder", [&] {
      for (int i = 0; i < 5000; ++i) {
        MutexLock lock(mutex);
        ++count;
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(count, 15000);
}

}  // namespace
}  // namespace tutti
