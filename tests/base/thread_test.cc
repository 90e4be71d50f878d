// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/thread.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <type_traits>

#include <gtest/gtest.h>

#include "tutti/base/wait_word.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

std::string name_seen_inside(const std::string& given) {
  std::string seen;
  {
    Thread thread(given, [&] {
      std::array<char, 32> buffer{};
      pthread_getname_np(pthread_self(), buffer.data(), buffer.size());
      seen = buffer.data();
    });
  }
  return seen;
}

TEST(Thread, HasItsName) { EXPECT_EQ(name_seen_inside("tutti/replica1"), "tutti/replica1"); }

TEST(Thread, TruncatesALongNameInsteadOfLosingIt) {
  EXPECT_EQ(name_seen_inside("tutti/replica123456"), "tutti/replica12");
}

TEST(Thread, DoesNotRenameTheThreadThatCreatesIt) {
  std::array<char, 32> before{};
  std::array<char, 32> after{};
  pthread_getname_np(pthread_self(), before.data(), before.size());
  {
    Thread thread("another", [] {});
  }
  pthread_getname_np(pthread_self(), after.data(), after.size());
  EXPECT_STREQ(before.data(), after.data());
}

TEST(Thread, JoinsInItsDestructor) {
  WaitWord go;
  std::atomic<bool> done{false};
  {
    Thread thread("worker", [&] {
      go.wait(0, WaitMode::kYield, Deadline::after(std::chrono::seconds(20)));
      std::this_thread::yield();
      done = true;
    });
    EXPECT_FALSE(done);
    go.bump();
  }
  EXPECT_TRUE(done);
}

TEST(Thread, RunsConcurrentlyWithItsCreator) {
  std::thread::id inside;
  {
    Thread thread("other", [&] { inside = std::this_thread::get_id(); });
  }
  EXPECT_NE(inside, std::this_thread::get_id());
  static_assert(!std::is_copy_constructible_v<Thread> && !std::is_move_constructible_v<Thread>);
}

TEST(Thread, NamesTheLimitsWhenTheSystemRefusesToStartIt) {
  pthread_attr_t before;
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  EXPECT_TUTTI_ERROR(Thread("tutti/other", [] {}), ErrorCode::kUnavailable, "tutti/other",
                     "Resource temporarily unavailable", "ulimit -v", "ulimit -u");
  ASSERT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&before);
  pthread_attr_destroy(&huge);
}

}  // namespace
}  // namespace tutti
