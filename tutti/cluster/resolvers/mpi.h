// SPDX-License-Identifier: Apache-2.0
//
// The cluster of an MPI launcher, without MPI itself: OpenMPI's OMPI_COMM_WORLD_*, and PMI_RANK and
// PMI_SIZE of MPICH, Intel MPI and srun. Launchers tell no address, so one usually has to be given.

#pragma once

#include <string>

#include "tutti/cluster/resolvers/rank_resolver.h"

namespace tutti {

/// Reads what mpirun and its relatives set. Threads: as RankClusterResolver.
class MpiClusterResolver : public RankClusterResolver {
 public:
  RankEnvironment ranks() const override;

  /// TUTTI_RENDEZVOUS (host:port) or MASTER_ADDR and MASTER_PORT. Without them: empty if there is
  /// only one process; on one host, a loopback address whose port follows from OpenMPI's id of the
  /// job (two jobs may meet on one port; job_id() tells them apart); else kFailedPrecondition.
  std::string rendezvous_address() const override;

  /// OpenMPI's id of the job; empty with other launchers.
  std::string job_id() const override;

  /// "OpenMPI" or "PMI".
  std::string source() const override;
};

}  // namespace tutti
