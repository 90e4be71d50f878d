// SPDX-License-Identifier: Apache-2.0
//
// How the workers of a cluster become a group: they meet at worker 0, compare what must be equal,
// and connect to each other.

#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tutti/group/worker_group.h"
#include "tutti/rpc/security.h"
#include "tutti/values/communication_options.h"

namespace tutti::internal {

struct WorkerRendezvousOptions {
  int rank = 0;
  std::vector<std::string> names = {};  ///< One per rank: "/job:worker/task:1".
  std::vector<std::string> addresses =
      {};                        ///< One per rank; "" if unknown; that of rank 0 is known.
  std::string own_address = {};  ///< Where this worker listens; "" finds one.
  std::string job = {};
  std::map<std::string, std::string> facts = {};  ///< Must be equal on all workers.
  std::map<std::string, std::string> info = {};   ///< Sent to all workers.
  rpc::SecurityOptions security = {};
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  int local_replicas = 1;
  std::chrono::milliseconds join_timeout{300'000};
  std::chrono::milliseconds timeout{300'000};
  std::chrono::milliseconds warning{5'000};
};

struct JoinedWorkers {
  std::shared_ptr<WorkerGroup> group;
  std::vector<std::map<std::string, std::string>> info;  ///< One per rank.
};

/// Waits until all workers have joined. Throws what rendezvous() and make_group() throw.
JoinedWorkers join_workers(const WorkerRendezvousOptions& options);

}  // namespace tutti::internal
