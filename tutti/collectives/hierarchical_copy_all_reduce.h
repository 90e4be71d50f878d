// SPDX-License-Identifier: Apache-2.0
//
// An all-reduce for devices in two islands with fast links inside and slow ones
// between, such as two groups of four GPUs: only one partial result and one result
// cross between them.

#pragma once

#include "tutti/collectives/cross_device_ops.h"

namespace tutti {

/// The tensors of a batch are concatenated by dtype and cut into packs; each pack is
/// reduced by other devices, and by the thread of the replica whose device is its
/// main one. The bits are those of the canonical tree, whatever the packs.
///
/// In host memory all devices are in one island: nothing is copied, and each pack is
/// reduced in one pass. Thread-safe.
class HierarchicalCopyAllReduce final : public CrossDeviceOps {
 public:
  /// 0 makes a pack of each tensor. Throws kInvalidArgument for a negative number.
  explicit HierarchicalCopyAllReduce(int num_packs = 1);

  int num_packs() const { return num_packs_; }

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override;
  void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override;

  int num_packs_;
};

}  // namespace tutti
