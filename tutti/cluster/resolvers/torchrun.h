// SPDX-License-Identifier: Apache-2.0
//
// The cluster that torchrun describes in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and in
// LOCAL_RANK and LOCAL_WORLD_SIZE if they are set. Schedulers that start PyTorch jobs set the same
// variables.

#pragma once

#include <string>

#include "tutti/cluster/resolvers/rank_resolver.h"

namespace tutti {

/// Reads the variables that torchrun sets. Threads: as RankClusterResolver.
class TorchrunClusterResolver : public RankClusterResolver {
 public:
  RankEnvironment ranks() const override;

  /// TUTTI_RENDEZVOUS if it is set, else MASTER_ADDR:MASTER_PORT, or the next port if torchrun's
  /// agent itself uses that one (TORCHELASTIC_USE_AGENT_STORE=True).
  std::string rendezvous_address() const override;

  /// TORCHELASTIC_RUN_ID and the number of restarts. Empty if torchrun was started without
  /// --rdzv_id: its default, "none", is the same for all jobs.
  std::string job_id() const override;

  std::string source() const override { return "torchrun"; }
};

}  // namespace tutti
