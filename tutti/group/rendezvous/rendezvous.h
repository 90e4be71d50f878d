// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a job find each other: they join rank 0 in any order, it compares them, and
// they leave with the same epoch and the addresses of all.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/listener.h"

namespace tutti {

struct RendezvousOptions {
  /// This process's own listener. Rank 0 answers the others with it, even after rendezvous() has
  /// returned, so that latecomers learn the reason.
  rpc::Listener& listener;
  int rank = 0;
  /// One per rank. That of rank 0 must be given on every rank; "" for another rank means that rank
  /// 0 will provide it. "" for this rank means listener.address().
  std::vector<std::string> addresses = {};
  std::string job = "job";      ///< processes of other jobs are refused
  std::string noun = "worker";  ///< what messages call a process
  /// Must be the same on all ranks: versions, counts, layouts. Up to 60, all small.
  std::map<std::string, std::string> facts = {};
  /// Sent to all ranks. Up to 60 entries.
  std::map<std::string, std::string> info = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  /// Replaces the timeout if the caller has already used a part of it.
  std::optional<Deadline> deadline = std::nullopt;
  /// How often this process logs which ranks it waits for.
  std::chrono::milliseconds report_interval = std::chrono::seconds(3);
  rpc::ChannelOptions channel = {};
};

struct Membership {
  uint64_t epoch = 0;  ///< random, the same on all ranks
  std::vector<std::string> addresses;
  std::vector<std::map<std::string, std::string>> info;
};

/// Waits until all ranks have joined. Throws kFailedPrecondition when facts differ (on every rank,
/// with the fact, both values and both ranks), when a rank joins twice, when its address is
/// loopback but others are not, or when it belongs to another job; kDeadlineExceeded, naming the
/// missing ranks, after the timeout; kUnavailable when rank 0 cannot be reached or disappears. When
/// rank 0 gives up, the others get its reason immediately.
Membership rendezvous(const RendezvousOptions& options);

}  // namespace tutti
