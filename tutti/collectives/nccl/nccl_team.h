// SPDX-License-Identifier: Apache-2.0
//
// The threads that make one all-reduce together, and which of them have the turn.
//
//   join    the members of a team find each other by an address they share
//   turn    the last to join waits for the turn and hands the communicators to all
//   leave   the last to leave gives the turn back
//
// One team at a time has the turn, from before its first call until its last member
// has seen the end of its work. So calls of two teams never mix, even when their
// device lists overlap: NCCL could then wait for itself.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"
#include "tutti/collectives/nccl/nccl_group.h"

namespace tutti::internal {

/// One all-reduce. Thread-safe.
class NcclTeam {
 public:
  explicit NcclTeam(size_t members) : members_(members) {}

  /// Called by the last to join, when it has the turn. Throws as throw_if_failed()
  /// does: then no member begins.
  void start(std::shared_ptr<NcclGroup> group);

  /// Returns the communicators. If the deadline passes first, the team fails with
  /// kDeadlineExceeded and this text.
  std::shared_ptr<NcclGroup> wait_for_start(const Deadline& deadline, const std::string& text);

  /// Keeps the first error and wakes all members that wait or pause. Returns true for the
  /// first, which then aborts the communicators; false also when all members have left.
  bool fail(std::exception_ptr error);

  /// Throws the first error: every member reports the cause, not what followed from it.
  void throw_if_failed() const;

  /// Returns null before the start.
  std::shared_ptr<NcclGroup> group() const;

  /// Changes when the team starts or fails.
  const WaitWord& news() const { return news_; }

 private:
  friend class NcclTeams;

  const size_t members_;
  mutable Mutex mutex_;
  size_t joined_ TUTTI_GUARDED_BY(mutex_) = 0;
  size_t left_ TUTTI_GUARDED_BY(mutex_) = 0;
  bool has_turn_ TUTTI_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ TUTTI_GUARDED_BY(mutex_);
  std::shared_ptr<NcclGroup> group_ TUTTI_GUARDED_BY(mutex_);
  WaitWord news_;
};

/// All teams of one NcclAllReduce. Thread-safe.
class NcclTeams {
 public:
  struct Joined {
    std::shared_ptr<NcclTeam> team;
    bool is_last;  ///< All members have joined.
  };

  /// `key` is what only the members of one team have in common, initially 0, and kept
  /// by them until all have left; null for a team of one. Throws kCancelled for a
  /// team that a member has given up.
  Joined join(std::atomic<int64_t>* key, size_t members);

  /// Keeps members that have not joined yet from waiting for this one.
  void give_up(std::atomic<int64_t>* key);

  /// Waits until no other team has the turn; false when the deadline passes first.
  bool take_turn(NcclTeam& team, const Deadline& deadline);

  struct Left {
    bool has_turn;  ///< The caller is the last of a team with the turn and gives it back.
    bool failed;
  };

  /// Every member that joined leaves once.
  Left leave(NcclTeam& team);
  void give_turn_back();

 private:
  Mutex mutex_;
  std::map<std::atomic<int64_t>*, std::shared_ptr<NcclTeam>> waiting_ TUTTI_GUARDED_BY(mutex_);
  bool turn_taken_ TUTTI_GUARDED_BY(mutex_) = false;
  WaitWord turn_free_;
};

}  // namespace tutti::internal
