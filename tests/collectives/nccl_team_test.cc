// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_team.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "tutti/base/thread.h"

#include "tests/support/expect_error.h"

namespace tutti::internal {
namespace {

using std::chrono::milliseconds;

const Deadline kPast = Deadline::after(milliseconds(0));
Deadline far_away() { return Deadline::after(std::chrono::seconds(20)); }

NcclResult make_nothing(NcclCommunicator*, int, const int*) { return NcclResult::kSuccess; }
NcclResult end_nothing(NcclCommunicator) { return NcclResult::kSuccess; }

std::shared_ptr<NcclGroup> some_group() {
  static const NcclFunctions functions = [] {
    NcclFunctions table;
    table.comm_init_all = make_nothing;
    table.comm_destroy = end_nothing;
    return table;
  }();
  return std::make_shared<NcclGroup>(
      functions, std::vector<c10::Device>(2, c10::Device(c10::DeviceType::CUDA, 0)));
}

std::exception_ptr error_of(const char* text) {
  return std::make_exception_ptr(Error(ErrorCode::kUnavailable, text));
}

TEST(NcclTeam, JoinsMembersByTheirKey) {
  NcclTeams teams;
  std::atomic<int64_t> key = 0;
  std::atomic<int64_t> other = 0;
  const auto first = teams.join(&key, 2);
  const auto stranger = teams.join(&other, 2);
  const auto second = teams.join(&key, 2);
  EXPECT_EQ(first.team, second.team);
  EXPECT_NE(first.team, stranger.team);
  EXPECT_FALSE(first.is_last);
  EXPECT_TRUE(second.is_last);
  EXPECT_NE(teams.join(&key, 2).team, first.team) << "that is the next all-reduce";
  EXPECT_TRUE(teams.join(nullptr, 1).is_last);
}

TEST(NcclTeam, EitherAMemberGivesUpOrTheTeamStarts) {
  NcclTeams teams;
  std::atomic<int64_t> key = 0;
  const auto team = teams.join(&key, 2).team;
  teams.join(&key, 2);
  EXPECT_TUTTI_ERROR(team->wait_for_start(kPast, "too late"), ErrorCode::kDeadlineExceeded,
                     "too late");
  EXPECT_TUTTI_ERROR(team->start(some_group()), ErrorCode::kDeadlineExceeded, "too late");
  EXPECT_EQ(team->group(), nullptr) << "no member begins";

  std::atomic<int64_t> next = 0;
  const auto started = teams.join(&next, 2).team;
  started->start(some_group());
  EXPECT_NE(started->wait_for_start(kPast, "too late"), nullptr);
}

TEST(NcclTeam, WakesWaitingMembersAtTheStartAndAtAFailure) {
  for (const bool fails : {false, true}) {
    NcclTeam team(2);
    bool threw = false;
    {
      const Thread waiter("waiter", [&] {
        try {
          team.wait_for_start(far_away(), "too late");
        } catch (const Error& error) {
          threw = std::string(error.what()) == "broken";
        }
      });
      if (fails) {
        EXPECT_TRUE(team.fail(error_of("broken")));
      } else {
        team.start(some_group());
      }
    }
    EXPECT_EQ(threw, fails);
  }
}

TEST(NcclTeam, KeepsTheFirstErrorUntilAllHaveLeft) {
  NcclTeams teams;
  std::atomic<int64_t> key = 0;
  const auto team = teams.join(&key, 2).team;
  teams.join(&key, 2);
  EXPECT_NO_THROW(team->throw_if_failed());
  EXPECT_TRUE(team->fail(error_of("first")));
  EXPECT_FALSE(team->fail(error_of("second")));
  EXPECT_TUTTI_ERROR(team->throw_if_failed(), ErrorCode::kUnavailable, "first");
  EXPECT_TRUE(teams.leave(*team).failed);

  const auto fine = teams.join(nullptr, 1).team;
  EXPECT_FALSE(teams.leave(*fine).failed);
  EXPECT_FALSE(fine->fail(error_of("after the end")));
  EXPECT_NO_THROW(fine->throw_if_failed());
}

TEST(NcclTeam, RefusesMembersThatJoinAfterOneHasGivenUp) {
  NcclTeams teams;
  std::atomic<int64_t> key = 0;
  teams.join(&key, 2);
  teams.give_up(&key);
  EXPECT_TUTTI_ERROR(teams.join(&key, 2), ErrorCode::kCancelled, "has given up");
  std::atomic<int64_t> next = 0;
  EXPECT_FALSE(teams.join(&next, 2).is_last);
}

TEST(NcclTeam, PassesTheTurnFromTeamToTeam) {
  NcclTeams teams;
  std::atomic<int64_t> key = 0;
  const auto a = teams.join(&key, 2).team;
  teams.join(&key, 2);
  const auto b = teams.join(nullptr, 1).team;
  ASSERT_TRUE(teams.take_turn(*a, far_away()));
  EXPECT_FALSE(teams.take_turn(*b, Deadline::after(milliseconds(5)))) << "taken";
  EXPECT_FALSE(teams.leave(*a).has_turn) << "one member is still at work";
  EXPECT_FALSE(teams.take_turn(*b, kPast));
  {
    bool taken = false;
    const Thread waiter("waiter", [&] {
      taken = teams.take_turn(*b, far_away());
      EXPECT_TRUE(taken);
    });
    EXPECT_TRUE(teams.leave(*a).has_turn);
    teams.give_turn_back();
  }
  EXPECT_TRUE(teams.leave(*b).has_turn);
}

}  // namespace
}  // namespace tutti::internal
