// SPDX-License-Identifier: Apache-2.0
//
// Runs the packs of an all-reduce through NCCL: communicators, streams, waiting and
// the handling of failures. NcclAllReduce decides which reductions run here.

#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/mutex.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/nccl/nccl_group.h"
#include "tutti/collectives/nccl/nccl_library.h"
#include "tutti/collectives/nccl/nccl_plan.h"
#include "tutti/collectives/nccl/nccl_team.h"
#include "tutti/collectives/nccl/nccl_watchdog.h"

namespace tutti::internal {

/// What a test replaces: data in host memory then counts as data on a GPU.
struct NcclSeams {
  const NcclFunctions* functions = nullptr;  ///< Must outlive the engine; null: the library's.
  NcclDeviceOf device_of = [](size_t, const at::Tensor& tensor) { return tensor.device(); };
  /// How long an abort waits for threads that are inside NCCL.
  std::chrono::milliseconds abort_grace = std::chrono::seconds(1);
};

/// Thread-safe.
class NcclEngine {
 public:
  explicit NcclEngine(NcclSeams seams) : seams_(std::move(seams)) {}

  const NcclDeviceOf& device_of() const { return seams_.device_of; }

  /// Does the share of batch.member(); plan.packs is not empty. Blocks until the work of
  /// its replicas is complete.
  void run(const AllReduceBatch& batch, const NcclPlan& plan, std::chrono::milliseconds timeout);

 private:
  struct Call;

  std::shared_ptr<NcclGroup> start(const Call& call);
  std::shared_ptr<NcclGroup> start_as_last(const Call& call);
  std::shared_ptr<NcclGroup> group_of(const NcclFunctions& nccl,
                                      const std::vector<c10::Device>& devices);
  void leave(NcclTeam& team);
  void drop(const std::shared_ptr<NcclGroup>& group);

  const NcclSeams seams_;
  NcclTeams teams_;
  Mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<NcclGroup>> groups_ TUTTI_GUARDED_BY(mutex_);
  NcclWatchdog watchdog_;
};

}  // namespace tutti::internal
