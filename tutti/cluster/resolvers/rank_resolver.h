// SPDX-License-Identifier: Apache-2.0
//
// What torchrun and the MPI launchers have in common: each process learns its rank, the number of
// processes, and at most one address, that of rank 0. Use torchrun.h or mpi.h.

#pragma once

#include <optional>
#include <string>

#include "tutti/cluster/cluster_resolver.h"

namespace tutti {

/// What a process learns from its launcher.
struct RankEnvironment {
  int rank = 0;
  int size = 1;
  std::optional<int> local_rank = std::nullopt;  ///< Among the processes of this host.
  std::optional<int> local_size = std::nullopt;
};

/// A cluster of "worker" tasks, one for each rank. Worker 0 has rendezvous_address(); the addresses
/// of the others are empty until the workers have met there; each listens on a port of its choice.
///
/// Threads: as ClusterResolver; the environment must not change meanwhile.
class RankClusterResolver : public ClusterResolver {
 public:
  /// Reads the variables again in each call. Throws kFailedPrecondition if only some of them are
  /// set or they contradict each other, kInvalidArgument if one is malformed.
  virtual RankEnvironment ranks() const = 0;

  ClusterSpec cluster_spec() const override;
  std::string rendezvous_address() const override = 0;
  bool is_explicit() const override { return false; }

 protected:
  std::optional<std::string> own_task_type() const override { return "worker"; }
  std::optional<int> own_task_id() const override { return ranks().rank; }
};

}  // namespace tutti
