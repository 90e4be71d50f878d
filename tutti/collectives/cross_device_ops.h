// SPDX-License-Identifier: Apache-2.0
//
// How values are combined between the devices of this process. A strategy takes
// an implementation as an option; write your own by overriding do_reduce, and
// do_all_reduce if the threads of the replicas can share the work.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>

#include "tutti/base/function_ref.h"
#include "tutti/collectives/arena.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"

namespace tutti {

/// Tensors to reduce over all local replicas, as one member of the team that does
/// it sees them. Inputs at one position have equal shapes and dtypes and are
/// contiguous; outputs are allocated, and may be the inputs.
class AllReduceBatch {
 public:
  /// Where a tensor lies.
  struct Memory {
    const void* input;
    void* output;
  };
  using TensorOf = FunctionRef<at::Tensor&(size_t replica, size_t tensor)>;
  using MemoryOf = FunctionRef<Memory(size_t replica, size_t tensor)>;
  using ClaimsOf = FunctionRef<std::atomic<int64_t>&(size_t member)>;

  /// The team is either one thread or the threads of all replicas.
  struct Team {
    size_t member = 0;
    size_t size = 1;
    ClaimsOf claims = {};
  };

  /// `like` are tensors with the dtypes and shapes of the inputs.
  AllReduceBatch(ReduceOp op, size_t replicas, std::span<at::Tensor* const> like, TensorOf input,
                 TensorOf output, MemoryOf memory, Team team)
      : op_(op),
        replicas_(replicas),
        like_(like),
        input_(input),
        output_(output),
        memory_(memory),
        team_(team) {}

  ReduceOp op() const { return op_; }
  size_t replicas() const { return replicas_; }
  size_t tensors() const { return like_.size(); }
  const at::Tensor& like(size_t tensor) const { return *like_[tensor]; }
  const at::Tensor& input(size_t replica, size_t tensor) const { return input_(replica, tensor); }
  at::Tensor& output(size_t replica, size_t tensor) const { return output_(replica, tensor); }
  Memory memory(size_t replica, size_t tensor) const { return memory_(replica, tensor); }

  /// Which of how many members calls.
  size_t member() const { return team_.member; }
  size_t members() const { return team_.size; }

  /// A counter of each member, 0 at first, that members may share work by. Only
  /// with several members.
  std::atomic<int64_t>& claims(size_t member) const { return team_.claims(member); }

 private:
  ReduceOp op_;
  size_t replicas_;
  std::span<at::Tensor* const> like_;
  TensorOf input_;
  TensorOf output_;
  MemoryOf memory_;
  Team team_;
};

/// Stateless between calls, and thread-safe: several strategies may share one.
class CrossDeviceOps {
 public:
  explicit CrossDeviceOps(std::shared_ptr<Arena> arena = std::make_shared<HeapArena>());
  virtual ~CrossDeviceOps() = default;
  CrossDeviceOps(const CrossDeviceOps&) = delete;
  CrossDeviceOps& operator=(const CrossDeviceOps&) = delete;

  /// One tensor from one component per replica. Throws kInvalidArgument when
  /// shapes or dtypes differ or the dtype cannot be reduced.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                    const CommunicationOptions& options = {});

  /// Reduces a batch into the outputs of every replica. Every member of the team
  /// calls it at the same time; the outputs are complete when all have returned.
  void all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options);

  /// Memory that this implementation reduces fastest.
  Arena& arena() { return *arena_; }

 private:
  virtual at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                               const CommunicationOptions& options) = 0;

  /// Does the share of batch.member(). By default member 0 calls do_reduce for
  /// each tensor and copies the result to every replica.
  virtual void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options);

  std::shared_ptr<Arena> arena_;
};

}  // namespace tutti
