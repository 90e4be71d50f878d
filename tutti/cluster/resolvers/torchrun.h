// SPDX-License-Identifier: Apache-2.0
//
// The cluster that torchrun describes: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
// LOCAL_RANK and LOCAL_WORLD_SIZE if they are set. Schedulers that start PyTorch jobs set the same.

#pragma once

#include <string>

#include "tutti/cluster/resolvers/rank_resolver.h"

namespace tutti {

/// Reads what torchrun sets. Threads: as RankClusterResolver.
class TorchrunClusterResolver : public RankClusterResolver {
 public:
  RankEnvironment ranks() const override;

  /// TUTTI_RENDEZVOUS if it is set, else MASTER_ADDR:MASTER_PORT. If torchrun's agent itself holds
  /// that port (TORCHELASTIC_USE_AGENT_STORE=True), the port after it.
  std::string rendezvous_address() const override;

  /// TORCHELASTIC_RUN_ID and the number of restarts. Empty if torchrun was given no --rdzv_id: its
  /// default, "none", is the same for all jobs.
  std::string job_id() const override;

  std::string source() const override { return "torchrun"; }
};

}  // namespace tutti
