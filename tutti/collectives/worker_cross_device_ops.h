// SPDX-License-Identifier: Apache-2.0
//
// Combines values over the replicas of all workers: first those of this process, then those of the
// other workers through a group. Every worker makes the same calls in the same order.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/worker_all_reduce.h"
#include "tutti/group/worker_group.h"

namespace tutti {

/// A value has one component for each local replica, or a single one that stands for the worker.
/// Thread-safe: calls take turns, but their order must be the same on all workers.
class WorkerCrossDeviceOps final : public CrossDeviceOps {
 public:
  WorkerCrossDeviceOps(std::shared_ptr<WorkerGroup> group, int local_replicas);

  WorkerGroup& group() { return *group_; }
  const WorkerTree& tree() const { return tree_; }

  std::unique_ptr<GradientReducer> make_gradient_reducer(
      std::vector<GradientBucket> buckets, const CommunicationOptions& options) override;

  IndexedSlices combine_slices(const char* who, ReduceOp op,
                               const std::vector<const IndexedSlices*>& parts,
                               const CommunicationOptions& options) override;

 private:
  at::Tensor reduce_named(std::string_view name, ReduceOp op, const PerReplica<at::Tensor>& value,
                          const CommunicationOptions& options);
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override;
  void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override;
  void do_all_gather(const AllGatherBatch& batch, const CommunicationOptions& options) override;
  at::Tensor do_gather(const PerReplica<at::Tensor>& value, const Devices& devices, int64_t axis,
                       const CommunicationOptions& options) override;

  struct Part;

  void reduce_part(ReduceOp op, const Part& part, const CommunicationOptions& options);
  void reduce_packed(const AllReduceBatch& batch, const std::string& what, size_t first,
                     size_t last, const CommunicationOptions& options);
  void reduce_one(const AllReduceBatch& batch, const std::string& name, size_t tensor,
                  const CommunicationOptions& options);
  Mutex& turn() { return group_->lane(LaneKind::kCollectives).turn(); }
  void wait(std::unique_ptr<Transfer> transfer) { transfer->wait(); }

  const std::shared_ptr<WorkerGroup> group_;
  const WorkerTree tree_;
  const WorkerTree tree_of_workers_;  // one component for each worker
};

}  // namespace tutti
