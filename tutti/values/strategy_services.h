// SPDX-License-Identifier: Apache-2.0
//
// What contexts and variables ask of their strategy: the one place where control
// flows from this layer up. StrategyExtended implements it.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"
#include "tutti/nest/leaf.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/meeting.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"

namespace tutti {

class ReplicaContext;
class VariableImpl;
struct VariableCreation;
struct VariableUpdate;

/// The operations of a replica and of variables, as their strategy implements them. Replicas call
/// it concurrently, each from its own thread.
class StrategyServices {
 public:
  virtual ~StrategyServices() = default;

  /// "MirroredStrategy(CPU:0, CPU:1)"
  virtual std::string describe() const = 0;

  virtual int num_replicas_in_sync() const = 0;

  /// Whether its context is valid on threads that are not in a scope or run.
  virtual bool is_ambient() const = 0;

  /// Waits until every replica has submitted a request, and completes the requests.
  virtual void meet(ReplicaContext& context, MeetingRequest& request) = 0;

  /// Replaces each leaf by its reduction over all replicas.
  virtual void all_reduce(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                          const std::string& structure, const CommunicationOptions& options,
                          CallSite site) = 0;

  /// The same, into the memory of the given tensors; not differentiable.
  virtual void all_reduce_in_place(ReplicaContext& context, ReduceOp op, const LeafList& leaves,
                                   const std::string& structure,
                                   const CommunicationOptions& options, CallSite site) = 0;

  /// Replaces each leaf by the concatenation over all replicas along `axis`.
  virtual void all_gather(ReplicaContext& context, const LeafList& leaves,
                          const std::string& structure, int64_t axis,
                          const CommunicationOptions& options, CallSite site) = 0;

  /// Makes a variable for the calling thread; in a replica, together with the other replicas.
  virtual std::shared_ptr<VariableImpl> create_variable(const VariableCreation& creation) = 0;

  /// Replaces each replica's value for an update by the combination of all values.
  virtual void combine_update(ReplicaContext& context, const VariableUpdate& update) = 0;

  /// Reduces the components of a variable, over all replicas, to one value.
  virtual at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& value) = 0;

  /// A copy of replica 0's value, given that of the first local replica. `name` is for diagnostics.
  virtual at::Tensor of_first_replica(const at::Tensor& local, const std::string& name) {
    (void)name;
    return local.clone();
  }
};

namespace internal {

/// The services of the calling thread's innermost context, otherwise the default strategy's.
StrategyServices& current_services();

}  // namespace internal

}  // namespace tutti
