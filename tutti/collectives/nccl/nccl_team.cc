// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_team.h"

#include <utility>

#include "tutti/base/error.h"

namespace tutti::internal {
namespace {

constexpr int64_t kGivenUp = -1;  // the value of a key whose team was given up

}  // namespace

void NcclTeam::start(std::shared_ptr<NcclGroup> group) {
  {
    MutexLock lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
    group_ = std::move(group);
  }
  news_.bump();
}

std::shared_ptr<NcclGroup> NcclTeam::wait_for_start(const Deadline& deadline,
                                                    const std::string& text) {
  for (;;) {
    const uint32_t seen = news_.load();
    {
      MutexLock lock(mutex_);
      if (error_ != nullptr) std::rethrow_exception(error_);
      if (group_ != nullptr) return group_;
      // Under the lock: either this member gives up or the team starts, not both.
      if (deadline.passed()) {
        error_ = std::make_exception_ptr(Error(ErrorCode::kDeadlineExceeded, text));
        news_.bump();
        std::rethrow_exception(error_);
      }
    }
    news_.wait(seen, WaitMode::kYield, deadline);
  }
}

bool NcclTeam::fail(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (error_ != nullptr || left_ == members_) return false;
    error_ = std::move(error);
  }
  news_.bump();
  return true;
}

void NcclTeam::throw_if_failed() const {
  std::exception_ptr error;
  {
    MutexLock lock(mutex_);
    error = error_;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

std::shared_ptr<NcclGroup> NcclTeam::group() const {
  MutexLock lock(mutex_);
  return group_;
}

NcclTeams::Joined NcclTeams::join(std::atomic<int64_t>* key, size_t members) {
  std::shared_ptr<NcclTeam> team;
  MutexLock lock(mutex_);
  if (key == nullptr) {
    team = std::make_shared<NcclTeam>(members);
  } else {
    if (key->load() == kGivenUp) {
      throw Error(ErrorCode::kCancelled,
                  "NcclAllReduce: another replica has given up this all-reduce.");
    }
    std::shared_ptr<NcclTeam>& waiting = waiting_[key];
    if (waiting == nullptr) waiting = std::make_shared<NcclTeam>(members);
    team = waiting;
  }
  MutexLock team_lock(team->mutex_);
  const bool is_last = ++team->joined_ == members;
  if (is_last && key != nullptr) waiting_.erase(key);
  return {team, is_last};
}

void NcclTeams::give_up(std::atomic<int64_t>* key) {
  if (key == nullptr) return;
  MutexLock lock(mutex_);
  key->store(kGivenUp);
  waiting_.erase(key);
}

bool NcclTeams::take_turn(NcclTeam& team, const Deadline& deadline) {
  for (;;) {
    const uint32_t seen = turn_free_.load();
    {
      MutexLock lock(mutex_);
      if (!turn_taken_) {
        turn_taken_ = true;
        MutexLock team_lock(team.mutex_);
        team.has_turn_ = true;
        return true;
      }
    }
    if (deadline.passed()) return false;
    turn_free_.wait(seen, WaitMode::kYield, deadline);
  }
}

NcclTeams::Left NcclTeams::leave(NcclTeam& team) {
  MutexLock lock(team.mutex_);
  const bool is_last = ++team.left_ == team.members_;
  return {is_last && team.has_turn_, team.error_ != nullptr};
}

void NcclTeams::give_turn_back() {
  {
    MutexLock lock(mutex_);
    turn_taken_ = false;
  }
  turn_free_.bump();
}

}  // namespace tutti::internal
