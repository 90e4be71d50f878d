// SPDX-License-Identifier: Apache-2.0
//
// A process that is forked while a strategy lives: using it in the child is an error, destroying
// it and exiting work.

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/function_ref.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"
#include "tutti/strategy/mirrored_strategy.h"

namespace tutti {
namespace {

// Ends the child as a program ends. The address sanitizer, which searches for leaks in exit(),
// would report the thread handles that a forked child leaves behind.
[[noreturn]] void leave(int code) {
#if defined(__SANITIZE_ADDRESS__)
  _exit(code);
#else
  std::exit(code);
#endif
}

// Runs body in a forked child and returns what it returns as exit code; nothing if the child had
// not ended after 20 seconds or was killed by a signal.
std::optional<int> in_child(FunctionRef<int()> body) {
  const pid_t child = fork();
  if (child == 0) leave(body());
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return std::nullopt;
    }
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  return WIFEXITED(status) ? std::optional(WEXITSTATUS(status)) : std::nullopt;
}

TEST(Fork, IsCounted) {
  const unsigned before = fork_count();
  EXPECT_EQ(in_child([&] { return fork_count() == before + 1 ? 0 : 1; }), 0);
  EXPECT_EQ(fork_count(), before);
}

TEST(Fork, AThreadCanBeDestroyedInTheChild) {
  WaitWord stop;
  auto thread = std::make_unique<Thread>(
      "stays", [&] { stop.park(0, Deadline::after(std::chrono::seconds(60))); });
  EXPECT_EQ(in_child([&] {
              thread.reset();
              return 0;
            }),
            0);
  stop.bump();
}

class ForkedStrategy : public ::testing::Test {
 protected:
  ForkedStrategy()
      : strategy_(std::make_unique<MirroredStrategy>(
            std::vector<std::string>{"CPU:0", "CPU:1", "CPU:2"})) {
    strategy_->run([] {});  // its threads have started
  }

  // Nothing has changed in the parent.
  ~ForkedStrategy() override {
    const auto ids =
        strategy_->run([] { return get_replica_context()->replica_id_in_sync_group(); });
    EXPECT_EQ(ids[0] + 10 * ids[1] + 100 * ids[2], 210);
  }

  std::unique_ptr<MirroredStrategy> strategy_;
};

TEST_F(ForkedStrategy, RunningInTheChildIsAnError) {
  EXPECT_EQ(in_child([&] {
              try {
                strategy_->run([] {});
                return 1;
              } catch (const Error& error) {
                const std::string text = error.what();
                if (error.code() != ErrorCode::kFailedPrecondition) return 2;
                if (text.find("MirroredStrategy") == std::string::npos) return 3;
                if (text.find("this process was forked after the strategy was made") ==
                    std::string::npos) {
                  return 4;
                }
                return 0;
              }
            }),
            0);
}

TEST_F(ForkedStrategy, CanBeDestroyedInTheChild) {
  EXPECT_EQ(in_child([&] {
              strategy_.reset();
              return 0;
            }),
            0);
}

TEST_F(ForkedStrategy, CanBeDestroyedInTheChildAfterAnError) {
  EXPECT_EQ(in_child([&] {
              try {
                strategy_->run([] {});
              } catch (const Error&) {
                strategy_.reset();
                return 0;
              }
              return 1;
            }),
            0);
}

TEST_F(ForkedStrategy, TheChildCanLeaveItBehind) {
  EXPECT_EQ(in_child([] { return 0; }), 0);
}

// Skipped under the thread sanitizer, which ends a forked child that starts threads.
#if !defined(__SANITIZE_THREAD__)
TEST_F(ForkedStrategy, TheChildCanMakeAStrategyOfItsOwn) {
  EXPECT_EQ(in_child([] {
              const MirroredStrategy own({"CPU:0", "CPU:1"});
              const auto result = own.run([] { return 3; });
              return result[0] + result[1] == 6 ? 0 : 1;
            }),
            0);
}
#endif

}  // namespace
}  // namespace tutti
