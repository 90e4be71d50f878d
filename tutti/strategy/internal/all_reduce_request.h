// SPDX-License-Identifier: Apache-2.0
//
// The request that a replica submits to a meeting to reduce tensors with the others.

#pragma once

#include <atomic>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/nest/leaf.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/meeting.h"
#include "tutti/values/replica_context.h"

namespace tutti {

class StrategyExtended;

namespace internal {

/// "float32[2]", or "3 leaves (float32[2], ...)".
std::string describe_all(const LeafList& leaves);

/// The leaves are checked and results allocated before the meeting; there the replicas reduce
/// together or, if there is little to do, the last to arrive reduces for all. Threads: as
/// MeetingRequest.
class AllReduceRequest : public MeetingRequest {
 public:
  /// `function` is a literal; its address identifies the call. `leaves` and `structure`
  /// outlive the request. Throws kInvalidArgument for a leaf that cannot be reduced.
  AllReduceRequest(const char* function, StrategyExtended& strategy, const ReplicaContext& context,
                   ReduceOp op, const LeafList& leaves, const std::string& structure,
                   const CommunicationOptions& options, CallSite site);

  /// Makes the results replace the contents of the tensors. Throws kInvalidArgument when a tensor
  /// is listed twice: it would be reduced twice.
  void reduce_in_place();

  /// Allocates separate memory for the results and prepares the inputs for the kernels.
  void allocate_outputs();

  /// Replaces the leaves by the results; called after the meeting.
  void hand_out();

  std::string describe() const override;
  void complete(std::span<MeetingRequest* const> requests) override;

 protected:
  /// The name of the operation in messages of other workers.
  virtual std::string label() const { return "all_reduce"; }

  at::Tensor& input(size_t tensor) { return inputs_.empty() ? *tensors_[tensor] : inputs_[tensor]; }
  at::Tensor& output(size_t tensor) {
    return outputs_.empty() ? *tensors_[tensor] : outputs_[tensor];
  }

 private:
  static constexpr size_t kNoted = 2;  // tensors whose memory is in the note

  void choose_completer();
  void add_memory(const void* input, void* output);
  void mark_shape(const at::Tensor& tensor, at::IntArrayRef sizes);
  void mark_leaf(const Leaf& leaf);
  void complete_other_leaf(const std::vector<Leaf>& column) const;

  c10::SmallVector<AllReduceBatch::Memory, 2> memory_;  // of each tensor leaf
  std::atomic<int64_t> claims_{0};
  int local_replica_;
  StrategyExtended& strategy_;
  ReduceOp op_;
  const LeafList& leaves_;
  const std::string& structure_;
  CommunicationOptions options_;
  c10::SmallVector<at::Tensor*, 4> tensors_;
  c10::SmallVector<at::Tensor, 2> inputs_;  // empty: reduce in place
  c10::SmallVector<at::Tensor, 2> outputs_;
};

}  // namespace internal
}  // namespace tutti
