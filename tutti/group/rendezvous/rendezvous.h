// SPDX-License-Identifier: Apache-2.0
//
// All processes of a job find each other: they come to rank 0 in any order, are compared, and leave
// with the same epoch and the addresses of all.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/server.h"

namespace tutti {

struct RendezvousOptions {
  /// This process's own server. Rank 0 answers the others with it, also after rendezvous() has
  /// returned, so that those who come late learn why.
  rpc::Server& server;
  int rank = 0;
  /// One per rank. That of rank 0 must be known everywhere; "" elsewhere means that rank 0 will
  /// tell. "" for this rank means server.address().
  std::vector<std::string> addresses = {};
  std::string job = "job";      ///< who comes for another job is sent away
  std::string noun = "worker";  ///< how messages call a process
  /// Must be the same on all ranks: versions, counts, layouts. Up to 64, all small.
  std::map<std::string, std::string> facts = {};
  /// Told to all ranks.
  std::map<std::string, std::string> info = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// When the timeout ends, if it has begun before the call.
  std::optional<Deadline> deadline = std::nullopt;
  /// How often a line in the log says for whom this process waits.
  std::chrono::milliseconds report_interval = std::chrono::seconds(3);
  rpc::ChannelOptions channel = {};
};

struct Membership {
  uint64_t epoch = 0;  ///< random, the same on all ranks
  std::vector<std::string> addresses;
  std::vector<std::map<std::string, std::string>> info;
};

/// A number that nobody guesses, and not 0: tells one group from another.
uint64_t random_epoch();

/// Waits until all ranks are there. Errors: kFailedPrecondition when facts differ (on every rank,
/// with the fact, both values and both ranks), when a rank comes twice, when its address is
/// loopback but others are not, or when it belongs to another job; kDeadlineExceeded, naming those
/// who are missing, after the timeout; kUnavailable when rank 0 cannot be reached or goes away.
/// When rank 0 gives up, the others get its reason at once.
Membership rendezvous(const RendezvousOptions& options);

}  // namespace tutti
