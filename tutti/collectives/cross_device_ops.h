// SPDX-License-Identifier: Apache-2.0
//
// How values are combined between the devices of this process. A strategy takes
// an implementation as an option; select_cross_device_ops.h has the default. Write
// your own by overriding do_reduce, and do_all_reduce if the threads of the replicas
// can share the work.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/function_ref.h"
#include "tutti/collectives/gradient_reducer.h"
#include "tutti/device/arena.h"
#include "tutti/nest/indexed_slices.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/destinations.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"

namespace tutti {

/// Tensors to reduce over all local replicas, as one member of the team that does it sees them.
/// Inputs at one position have equal shapes and dtypes and are contiguous; outputs are allocated,
/// and may be the inputs. Immutable; each member has its own.
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
  using NameOf = FunctionRef<std::string()>;

  /// The team is either one thread or the threads of all replicas.
  struct Team {
    size_t member = 0;
    size_t size = 1;
    ClaimsOf claims = {};
  };

  /// `like` are tensors with the dtypes and shapes of the inputs.
  AllReduceBatch(ReduceOp op, size_t replicas, std::span<at::Tensor* const> like, TensorOf input,
                 TensorOf output, MemoryOf memory, Team team, NameOf name = {})
      : op_(op),
        replicas_(replicas),
        like_(like),
        input_(input),
        output_(output),
        memory_(memory),
        team_(team),
        name_(name) {}

  ReduceOp op() const { return op_; }
  size_t replicas() const { return replicas_; }
  size_t tensors() const { return like_.size(); }
  const at::Tensor& like(size_t tensor) const { return *like_[tensor]; }
  const at::Tensor& input(size_t replica, size_t tensor) const { return input_(replica, tensor); }
  at::Tensor& output(size_t replica, size_t tensor) const { return output_(replica, tensor); }
  Memory memory(size_t replica, size_t tensor) const { return memory_(replica, tensor); }

  /// Names the call or the variable, for diagnostics and to detect workers that reduce different
  /// things.
  std::string name() const { return name_ ? name_() : "all_reduce"; }

  /// Which member calls, and how many there are.
  size_t member() const { return team_.member; }
  size_t members() const { return team_.size; }

  /// One counter per member, initially 0, by which members may share work. Only
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
  NameOf name_;
};

/// Tensors to concatenate over all local replicas, as one member of the team that does it sees
/// them. The team is the threads of all replicas: member r is replica r. Immutable; each member has
/// its own.
class AllGatherBatch {
 public:
  using PartOf = FunctionRef<const at::Tensor&(size_t replica, size_t tensor)>;
  /// Stores the result of a replica, and where the replica's own part begins in it.
  using GiveFn = FunctionRef<void(size_t replica, size_t tensor, at::Tensor all, int64_t begin)>;

  AllGatherBatch(size_t replicas, std::span<const int64_t> axes, PartOf part, GiveFn give,
                 size_t member)
      : replicas_(replicas), axes_(axes), part_(part), give_(give), member_(member) {}

  size_t replicas() const { return replicas_; }
  size_t tensors() const { return axes_.size(); }
  int64_t axis(size_t tensor) const { return axes_[tensor]; }
  const at::Tensor& part(size_t replica, size_t tensor) const { return part_(replica, tensor); }
  void give(size_t replica, size_t tensor, at::Tensor all, int64_t begin) const {
    give_(replica, tensor, std::move(all), begin);
  }

  /// Which member calls.
  size_t member() const { return member_; }

 private:
  size_t replicas_;
  std::span<const int64_t> axes_;
  PartOf part_;
  GiveFn give_;
  size_t member_;
};

/// A value to reduce and its destinations.
struct ReducePair {
  PerReplica<at::Tensor> value;
  Destinations destinations;
};

/// Stateless between calls, and thread-safe: several strategies may share one.
///
/// Components of a dense value have equal shapes and dtypes; component i belongs to
/// local replica i. Every destination gets its own memory. Errors of arguments are
/// kInvalidArgument.
class CrossDeviceOps {
 public:
  explicit CrossDeviceOps(std::shared_ptr<Arena> arena = std::make_shared<HeapArena>());
  virtual ~CrossDeviceOps() = default;
  CrossDeviceOps(const CrossDeviceOps&) = delete;
  CrossDeviceOps& operator=(const CrossDeviceOps&) = delete;

  /// Returns the reduction of all components, on each destination.
  Mirrored<at::Tensor> reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                              const Destinations& destinations,
                              const CommunicationOptions& options = {});

  /// The same for one component.
  Mirrored<at::Tensor> reduce(ReduceOp op, const at::Tensor& value,
                              const Destinations& destinations,
                              const CommunicationOptions& options = {}) {
    return reduce(op, PerReplica<at::Tensor>(std::vector<at::Tensor>{value}), destinations,
                  options);
  }

  /// Returns all slices in replica order; kMean divides the values by the number of replicas.
  /// Throws kInvalidArgument for other operations.
  Mirrored<IndexedSlices> reduce(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                 const Destinations& destinations,
                                 const CommunicationOptions& options = {});

  /// reduce() for each pair, in order; they are combined into packs when every value goes
  /// to the devices it lies on.
  std::vector<Mirrored<at::Tensor>> batch_reduce(ReduceOp op, const std::vector<ReducePair>& pairs,
                                                 const CommunicationOptions& options = {});

  /// Returns a copy of the tensor on each destination.
  Mirrored<at::Tensor> broadcast(const at::Tensor& tensor, const Destinations& destinations);

  /// Returns the components concatenated along `axis`, on each destination. Sizes may
  /// differ along `axis` only.
  Mirrored<at::Tensor> gather(const PerReplica<at::Tensor>& value, const Destinations& destinations,
                              int64_t axis, const CommunicationOptions& options = {});

  /// Reduces a batch into the outputs of every replica. Every member of the team
  /// calls it at the same time; the outputs are complete when all have returned.
  void all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options);

  /// Concatenates a batch for every replica. Every member of the team calls it; results are
  /// complete when all have returned.
  void all_gather(const AllGatherBatch& batch, const CommunicationOptions& options);

  /// Slices of all replicas, one after the other, from those of the local ones; kMean divides by
  /// the number of replicas. Errors begin with `who`.
  virtual IndexedSlices combine_slices(const char* who, ReduceOp op,
                                       const std::vector<const IndexedSlices*>& parts,
                                       const CommunicationOptions& options);

  /// Makes what sums gradients in these buckets; it may use this object as long as it lives.
  /// By default all_reduce() of all buckets at the end of backward.
  virtual std::unique_ptr<GradientReducer> make_gradient_reducer(
      std::vector<GradientBucket> buckets, const CommunicationOptions& options);

  /// Memory that this implementation reduces fastest.
  Arena& arena() { return *arena_; }

 protected:
  using Devices = std::vector<DeviceSpec>;

  /// Returns one tensor from one component per replica, on any device. Inside these functions
  /// gradients are not recorded; the caller checks arguments and the result.
  virtual at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                               const CommunicationOptions& options) = 0;

  /// Returns one tensor for each device. By default do_reduce, then do_broadcast.
  virtual std::vector<at::Tensor> do_reduce_to(ReduceOp op, const PerReplica<at::Tensor>& value,
                                               const Devices& devices,
                                               const CommunicationOptions& options);

  /// Returns one tensor for each device, none of which is `tensor` itself.
  virtual std::vector<at::Tensor> do_broadcast(const at::Tensor& tensor, const Devices& devices);

  /// Returns one tensor on any device, by default on the first; `axis` is not negative.
  virtual at::Tensor do_gather(const PerReplica<at::Tensor>& value, const Devices& devices,
                               int64_t axis, const CommunicationOptions& options);

  /// Does the share of batch.member(). By default member 0 calls do_reduce for
  /// each tensor and copies the result to every replica.
  virtual void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options);

  /// Does the share of batch.member(). By default each member concatenates for itself, on the
  /// device of its part.
  virtual void do_all_gather(const AllGatherBatch& batch, const CommunicationOptions& options);

 private:
  std::shared_ptr<Arena> arena_;
};

}  // namespace tutti
