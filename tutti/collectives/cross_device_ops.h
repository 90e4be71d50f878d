// SPDX-License-Identifier: Apache-2.0
//
// How values are combined between the devices of this process. A strategy takes
// an implementation as an option; write your own by overriding do_reduce, and
// do_all_reduce if it can use the threads of the replicas.

#pragma once

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

/// The threads of all local replicas, gathered at a meeting point. One of them
/// calls parallel_for; those that wait help.
class Team {
 public:
  virtual ~Team() = default;

  virtual int size() const = 0;

  /// Calls body(0) ... body(count - 1), each once, and returns when all are done.
  /// Member k of the team begins with the k-th part of the range, so that the
  /// same memory is touched by the same core each time; who is done helps others.
  virtual void parallel_for(int64_t count, FunctionRef<void(int64_t)> body) = 0;
};

/// Tensors to reduce over all local replicas. Inputs at one position have equal
/// shapes and dtypes and are contiguous; outputs are allocated, and may be the inputs.
class AllReduceBatch {
 public:
  /// Where a tensor lies.
  struct Memory {
    const void* input;
    void* output;
  };
  using TensorOf = FunctionRef<at::Tensor&(size_t replica, size_t tensor)>;
  using MemoryOf = FunctionRef<Memory(size_t replica, size_t tensor)>;

  /// `like` are tensors with the dtypes and shapes of the inputs.
  AllReduceBatch(ReduceOp op, size_t replicas, std::span<at::Tensor* const> like, TensorOf input,
                 TensorOf output, MemoryOf memory)
      : op_(op),
        replicas_(replicas),
        like_(like),
        input_(input),
        output_(output),
        memory_(memory) {}

  ReduceOp op() const { return op_; }
  size_t replicas() const { return replicas_; }
  size_t tensors() const { return like_.size(); }
  const at::Tensor& like(size_t tensor) const { return *like_[tensor]; }
  const at::Tensor& input(size_t replica, size_t tensor) const { return input_(replica, tensor); }
  at::Tensor& output(size_t replica, size_t tensor) const { return output_(replica, tensor); }
  Memory memory(size_t replica, size_t tensor) const { return memory_(replica, tensor); }

 private:
  ReduceOp op_;
  size_t replicas_;
  std::span<at::Tensor* const> like_;
  TensorOf input_;
  TensorOf output_;
  MemoryOf memory_;
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

  /// Reduces a batch into the outputs of every replica.
  void all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options, Team& team);

  /// Memory that this implementation reduces fastest.
  Arena& arena() { return *arena_; }

 private:
  virtual at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                               const CommunicationOptions& options) = 0;

  /// By default do_reduce for each tensor and a copy to every replica.
  virtual void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options,
                             Team& team);

  std::shared_ptr<Arena> arena_;
};

}  // namespace tutti
