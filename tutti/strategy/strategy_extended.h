// SPDX-License-Identifier: Apache-2.0
//
// The extension point: what makes one strategy differ from another. Users call
// Strategy (strategy.h), which checks and unpacks; an implementation works on
// whole functions and lists of tensors. LocalExtended (local_extended.h) does it
// with threads and CrossDeviceOps, and is the base of the in-process strategies.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tutti/base/function_ref.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/device/device_spec.h"
#include "tutti/values/replica_context.h"

namespace tutti {

class ClusterResolver;

/// Shared by all handles of one strategy. Thread-safe where it says so; run()
/// from several threads takes turns.
class StrategyExtended : public ReplicaHost, public std::enable_shared_from_this<StrategyExtended> {
 public:
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  /// "MirroredStrategy"; errors and logs begin with it.
  const std::string& name() const { return name_; }

  /// "MirroredStrategy(CPU:0, CPU:1)"
  std::string describe() const;

  int num_replicas_in_sync() const { return num_replicas_; }
  int num_local_replicas() const { return static_cast<int>(contexts_.size()); }

  /// The devices of the local replicas; one for each.
  const std::vector<DeviceSpec>& worker_devices() const { return devices_; }

  /// Where variables live.
  virtual const std::vector<DeviceSpec>& parameter_devices() const { return devices_; }

  /// Null unless the strategy was made from a cluster.
  virtual const ClusterResolver* cluster_resolver() const { return nullptr; }

  /// Contexts live as long as this object. Throws kInvalidArgument for a bad id.
  ReplicaContext& replica_context(int local_replica) const;

  /// Calls fn once for each local replica, concurrently, in its context. The
  /// caller must be in cross-replica context or outside of any scope.
  void call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn);

  /// The reduction of one component per local replica, over all replicas.
  /// Shapes and dtypes of the components must be equal.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& value);

  /// The concatenation along `axis` (0 or more), over all replicas.
  at::Tensor gather(const PerReplica<at::Tensor>& value, int64_t axis);

  /// Memory for tensors that will be reduced.
  Arena& arena() { return cross_device_ops().arena(); }

  virtual CrossDeviceOps& cross_device_ops() = 0;

  // The collective operations of replicas, built on meet() and cross_device_ops().
  void all_reduce(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                  const std::string& structure, const CommunicationOptions& options,
                  CallSite site) override;
  void all_reduce_in_place(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                           const std::string& structure, const CommunicationOptions& options,
                           CallSite site) override;
  void all_gather(ReplicaContext& context, const LeafList& leaves, const std::string& structure,
                  int64_t axis, const CommunicationOptions& options, CallSite site) override;

 protected:
  /// Local replica i runs on devices[i] and has the global id first_replica_id + i.
  StrategyExtended(std::string name, std::vector<DeviceSpec> devices, int first_replica_id,
                   int num_replicas);

  std::vector<ReplicaContext*> contexts() const;

 private:
  virtual void do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) = 0;
  virtual at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value);
  virtual at::Tensor do_gather(const PerReplica<at::Tensor>& value, int64_t axis);

  std::string name_;
  std::vector<DeviceSpec> devices_;
  int num_replicas_;
  std::vector<std::unique_ptr<ReplicaContext>> contexts_;
};

}  // namespace tutti
