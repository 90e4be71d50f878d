// SPDX-License-Identifier: Apache-2.0
//
// Connects the ranks of a group: through shared memory where they run on one machine, through
// RemoteLinks where they do not. It can say which was chosen, and why.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/group/worker_group.h"
#include "tutti/rpc/security.h"
#include "tutti/values/communication_options.h"

namespace tutti {

/// Links to ranks that shared memory does not reach. Only the thread that connects the group uses
/// it.
class RemoteLinks {
 public:
  virtual ~RemoteLinks() = default;

  /// All ranks call it together, each with the ranks it cannot reach otherwise.
  virtual void connect(const std::vector<int>& ranks, const Deadline& deadline) = 0;
  virtual std::unique_ptr<Link> make_link(size_t lane, int rank) = 0;
};

struct GroupOptions {
  int rank = 0;
  std::vector<std::string> names = {};  ///< One per rank: "/job:worker/task:1 (hostB:4321)".
  uint64_t epoch = 0;                   ///< Random, and the same on all ranks.
  int local_replicas = 1;               ///< Threads of each rank that run simultaneously.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  std::chrono::milliseconds timeout{300'000};          ///< Limits every operation.
  std::chrono::milliseconds warning{5'000};            ///< Longer waits are logged.
  std::chrono::milliseconds connect_timeout{300'000};  ///< Limits how long make_group() takes.
  size_t segment_bytes = size_t{16} << 30;             ///< Shared memory; only what is used counts.

  /// Gives the text of every rank to every rank; all ranks call it together.
  std::function<std::vector<std::string>(const std::string& mine)> gather;
  /// May be null, if all ranks are on one machine.
  std::shared_ptr<RemoteLinks> remote = nullptr;
};

/// Connects this rank with all others, which call it at the same time. Throws kUnavailable when a
/// rank cannot be reached, and kInvalidArgument for impossible options.
std::shared_ptr<WorkerGroup> make_group(const GroupOptions& options);

struct RemoteOptions {
  /// Where this rank listens: "host:port"; port 0 means any free port. An address other than
  /// loopback needs an explicit job secret or certificates.
  std::string address = "127.0.0.1:0";
  rpc::SecurityOptions security = {};
};

/// For GroupOptions::remote: listens for the other ranks, and tells them where through
/// options.gather; all ranks call it together. Throws kUnavailable if it cannot listen.
std::shared_ptr<RemoteLinks> make_remote_links(const GroupOptions& options,
                                               const RemoteOptions& remote = {});

}  // namespace tutti
