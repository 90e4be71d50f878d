// SPDX-License-Identifier: Apache-2.0
//
// A strategy whose replicas are threads of several processes in lock step.

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/cluster/cluster_resolver.h"
#include "tutti/collectives/worker_cross_device_ops.h"
#include "tutti/group/input_board.h"
#include "tutti/strategy/local_extended.h"

namespace tutti::internal {

/// See StrategyExtended. A failure of any worker ends the group: all calls of all workers throw
/// from then on.
class MultiWorkerExtended : public LocalExtended {
 public:
  /// `ops` are those of `group`.
  MultiWorkerExtended(std::string name, std::vector<DeviceSpec> devices,
                      std::shared_ptr<WorkerGroup> group,
                      const std::shared_ptr<WorkerCrossDeviceOps>& ops,
                      const ReplicaRunnerOptions& options,
                      const CommunicationOptions& communication_options,
                      std::shared_ptr<ClusterResolver> resolver = nullptr);

  WorkerGroup& group() { return *group_; }
  const ClusterResolver* cluster_resolver() const override { return resolver_.get(); }

  std::string describe() const override;
  int num_workers() const override { return group_->size(); }
  int worker_index() const override { return group_->rank(); }
  bool between_graph() const override { return true; }
  bool in_multi_worker_mode() const override { return true; }
  bool should_checkpoint() const override { return worker_index() == 0; }
  bool should_save_summary() const override { return worker_index() == 0; }

  InputTotals add_up_input(const InputProgress& progress) override;
  void end_input_pass(int64_t pass) override { input_.forget(pass); }
  uint64_t agree_on_seed(uint64_t mine) override;
  using LocalExtended::gather_from_workers;
  std::vector<at::Tensor> gather_from_workers(const at::Tensor& mine, std::string_view name,
                                              const CommunicationOptions& options) override;
  void take_from_first_worker(const at::Tensor& tensor, std::string_view name) override;

 private:
  void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) override;
  void note_error(const ReplicaContext& context, const char* text);

  const std::shared_ptr<ClusterResolver> resolver_;
  const std::shared_ptr<WorkerGroup> group_;
  const std::shared_ptr<WorkerCrossDeviceOps> ops_;
  InputBoard input_;
  std::atomic<uint64_t> runs_{0};
};

}  // namespace tutti::internal
