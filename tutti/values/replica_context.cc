// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/replica_context.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/values/variable.h"

namespace tutti {
namespace internal {

int current_local_replica() {
  const ContextFrame* frame = current_frame();
  return frame != nullptr && frame->replica != nullptr ? frame->replica->local_replica_id() : -1;
}

BackwardScope::BackwardScope(StrategyServices& services, ReplicaContext& replica,
                             std::string_view who) {
  const ContextFrame* const frame = current_frame();
  if (frame == nullptr) {
    frame_.emplace(&services, &replica);
  } else if (frame->replica != &replica) {
    throw Error(ErrorCode::kFailedPrecondition,
                message(who, ": the backward pass of replica ", replica.replica_id_in_sync_group(),
                        " runs in the context of another replica or in cross-replica context. "
                        "Call backward() inside Strategy::run, on the replica's own loss."));
  }
}

}  // namespace internal

ReplicaContext::ReplicaContext(StrategyServices& services, int replica_id, int local_id,
                               int num_replicas, DeviceSpec device)
    : services_(&services),
      replica_id_(replica_id),
      local_id_(local_id),
      num_replicas_(num_replicas),
      device_(std::move(device)) {}

at::Tensor ReplicaContext::all_reduce(ReduceOp op, const Variable& variable,
                                      const CommunicationOptions& options, CallSite site) {
  check_current("all_reduce");
  return all_reduce(op, variable.value(), options, site);
}

at::Tensor ReplicaContext::all_gather(const Variable& variable, int64_t axis,
                                      const CommunicationOptions& options, CallSite site) {
  check_current("all_gather");
  return all_gather(variable.value(), axis, options, site);
}

void ReplicaContext::check_current(const char* function) const {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr ? services_->is_ambient() : frame->replica == this) return;
  const std::string where =
      frame == nullptr ? std::string("outside Strategy::run")
      : frame->replica == nullptr
          ? std::string("in cross-replica context")
          : message("in replica ", frame->replica->replica_id_,
                    frame->services == services_ ? "" : " of another strategy");
  throw Error(ErrorCode::kFailedPrecondition,
              message("ReplicaContext::", function, ": this is the context of replica ",
                      replica_id_, ", but the calling thread is ", where,
                      ". Call it inside Strategy::run on get_replica_context(); a thread of your "
                      "own first calls enter() on the context."));
}

}  // namespace tutti
