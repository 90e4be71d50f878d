// SPDX-License-Identifier: Apache-2.0
//
// The cluster of an MPI launcher, without MPI itself: OpenMPI's OMPI_COMM_WORLD_*, and PMI_RANK and
// PMI_SIZE of MPICH, Intel MPI and srun. These launchers provide no address, so the user usually
// has to give one.

#pragma once

#include <string>

#include "tutti/cluster/resolvers/rank_resolver.h"

namespace tutti {

/// Reads the variables that mpirun and similar launchers set. Threads: as RankClusterResolver.
class MpiClusterResolver : public RankClusterResolver {
 public:
  RankEnvironment ranks() const override;

  /// TUTTI_RENDEZVOUS (host:port) or MASTER_ADDR and MASTER_PORT. Without them: empty if there is
  /// only one process; on one host, a loopback address whose port is derived from OpenMPI's job id
  /// (two jobs may share a port; job_id() distinguishes them); else throws kFailedPrecondition.
  std::string rendezvous_address() const override;

  /// OpenMPI's job id; empty with other launchers.
  std::string job_id() const override;

  /// "OpenMPI" or "PMI".
  std::string source() const override;
};

}  // namespace tutti
