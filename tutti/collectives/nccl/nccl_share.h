// SPDX-License-Identifier: Apache-2.0
//
// What one member of a team does in an all-reduce by NCCL: it queues the work of its
// replicas on their devices, pack by pack, and waits until that is complete.

#pragma once

#include <chrono>
#include <cstddef>

#include "tutti/base/deadline.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/nccl/nccl_group.h"
#include "tutti/collectives/nccl/nccl_plan.h"
#include "tutti/collectives/nccl/nccl_team.h"

namespace tutti::internal {

/// The replicas [first, last) of an all-reduce. Everything outlives the call.
struct NcclShare {
  const AllReduceBatch& batch;
  const NcclPlan& plan;
  NcclGroup& group;
  NcclTeam& team;
  size_t first;
  size_t last;
};

/// Throws what NCCL or LibTorch reports, the error of another member as soon as that
/// fails, and kDeadlineExceeded. The caller then aborts the group. `timeout` is only
/// printed.
void run_nccl_share(const NcclShare& share, const Deadline& deadline,
                    std::chrono::milliseconds timeout);

}  // namespace tutti::internal
