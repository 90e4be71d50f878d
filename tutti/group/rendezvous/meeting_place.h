// SPDX-License-Identifier: Apache-2.0
//
// Rank 0 of a rendezvous: records which ranks have joined, compares their facts, and responds to
// each.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"
#include "tutti/group/rendezvous/rendezvous.h"
#include "tutti/rpc/listener.h"

namespace tutti::internal {

inline constexpr const char* kJoinMethod = "rendezvous.join";

/// One joining process. A plain value.
struct Member {
  int rank = 0;
  int world = 0;
  std::string job;
  std::string instance;  ///< random: distinguishes a second process from a second message
  std::string address;
  std::map<std::string, std::string> facts;
  std::map<std::string, std::string> info;
};

std::string print_member(const Member& member);
/// Throws kInvalidArgument if the text is malformed.
Member parse_member(std::string_view text);

/// The result in the response to a join; nothing, and `waiting_for`, if others are still missing.
std::optional<Membership> parse_answer(std::string_view text, std::string& waiting_for);

/// "worker 2 of 4 (hostC:4321)"
std::string describe(const std::string& noun, int rank, int world, const std::string& address);

/// Throws kFailedPrecondition if `address` is loopback although one of the others is not.
void check_reachable(const std::string& who, const std::string& address,
                     const std::vector<std::string>& others);

/// Shared by the waiting thread of rank 0 and the handler of its listener. Thread-safe.
class MeetingPlace {
 public:
  MeetingPlace(const RendezvousOptions& options, Member own);

  /// Handles a request of a process that joins or asks again.
  void join(const std::string& request, const rpc::Reply& reply);
  /// Waits until all ranks have joined and returns the result, or throws the error that all get.
  /// `listener` is the one at which they join.
  Membership wait(const rpc::Listener& listener, Deadline deadline);

 private:
  struct Seat {
    Member member;
    std::optional<rpc::Reply> reply = {};
    bool told = false;                       ///< has the final response
    Deadline back_by = Deadline::forever();  ///< when it must have asked again
  };

  void check_member(const Member& member);
  void seat(const Member& member, const rpc::Reply& reply) TUTTI_REQUIRES(mutex_);
  void forget_the_gone() TUTTI_REQUIRES(mutex_);
  void compare_facts(const Member& member) TUTTI_REQUIRES(mutex_);
  bool all_here() const TUTTI_REQUIRES(mutex_);
  bool all_told() const TUTTI_REQUIRES(mutex_);
  void answer_all() TUTTI_REQUIRES(mutex_);
  void answer_waiting() TUTTI_REQUIRES(mutex_);
  void conclude() TUTTI_REQUIRES(mutex_);
  std::string missing() const TUTTI_REQUIRES(mutex_);
  Error too_late(const rpc::Listener& listener) const TUTTI_REQUIRES(mutex_);
  void report_and_wait(Deadline deadline);
  void linger(Deadline deadline);

  const std::string job_;
  const std::string noun_;
  const std::vector<std::string> known_;  ///< addresses as given, perhaps empty
  const std::chrono::milliseconds report_interval_;
  const std::chrono::milliseconds timeout_;
  const int world_;
  WaitWord changed_;
  mutable Mutex mutex_;
  std::map<int, Seat> seats_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Error> failure_ TUTTI_GUARDED_BY(mutex_);
  std::optional<Membership> result_ TUTTI_GUARDED_BY(mutex_);
  std::string last_refusal_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::internal
