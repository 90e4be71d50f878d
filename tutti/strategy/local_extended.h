// SPDX-License-Identifier: Apache-2.0
//
// The base of strategies whose replicas are threads of this process.

#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tutti/strategy/replica_runner.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti {

/// One replica per device; values are combined by `cross_device_ops`. When null these are
/// select_cross_device_ops() over the replicas of all workers. A run that fails on one worker ends
/// the group of all. Thread-safe as StrategyExtended is.
class LocalExtended : public StrategyExtended {
 public:
  LocalExtended(std::string name, std::vector<DeviceSpec> devices,
                std::shared_ptr<CrossDeviceOps> cross_device_ops,
                const ReplicaRunnerOptions& options, StrategyTraits traits = {});

  CrossDeviceOps& cross_device_ops() override { return *cross_device_ops_; }
  uint64_t failed_runs() const override { return runner_.failed_runs(); }
  int threads_per_replica() const { return runner_.threads_per_replica(); }

  void meet(ReplicaContext& context, MeetingRequest& request) override {
    runner_.meet(context.local_replica_id(), request);
  }

 protected:
  void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) override;

 private:
  void end_group(const ReplicaContext& context, const std::exception_ptr& error);

  std::shared_ptr<CrossDeviceOps> cross_device_ops_;
  ReplicaRunner runner_;
};

}  // namespace tutti
