// SPDX-License-Identifier: Apache-2.0
//
// All-reduce between GPUs of this process by NCCL, which is loaded at run time. NCCL
// only moves bytes; the sum is the canonical tree (reduction_tree.h), so the bits are
// those of every other implementation. docs/guide/cross-device-ops.md has more.

#pragma once

#include <atomic>
#include <memory>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/host_all_reduce.h"

namespace tutti {

namespace internal {
class NcclEngine;
struct NcclSeams;
}  // namespace internal

/// Whether the NCCL library can be loaded. Cheap after the first call. Thread-safe.
bool nccl_is_available();

/// Each replica gets one chunk from every other replica, reduces it on its device, and
/// all gather the chunks, which moves as many bytes as a ring. Tensors of one dtype are
/// concatenated and cut into `num_packs` packs (concat_and_split); bytes_per_pack is not used.
///
/// Blocks until the result is complete, for at most CommunicationOptions::timeout, or ten
/// minutes; then throws kDeadlineExceeded. (NCCL's functions that make and abort
/// communicators cannot be interrupted, so these take as long as they take.) After a
/// failure the communicators are aborted, all members that have not ended throw the first
/// error, and the next call makes new communicators.
///
/// Tensors in host memory are reduced as HostAllReduce does, with one warning; so is a
/// reduction that is not from all GPUs to all GPUs. NCCL is loaded and communicators
/// are made when they are first needed: kNotFound or kUnimplemented if that fails.
///
/// Thread-safe: all-reduces of several strategies take turns. Use one object for all
/// strategies that share GPUs, because two objects do not know of each other.
class NcclAllReduce final : public CrossDeviceOps {
 public:
  /// 0 reduces every tensor on its own; negative numbers are kInvalidArgument.
  explicit NcclAllReduce(int num_packs = 1);

  /// Uses other functions and devices, for tests.
  NcclAllReduce(int num_packs, const internal::NcclSeams& seams);

  /// No call may be in progress.
  ~NcclAllReduce() override;

  int num_packs() const { return num_packs_; }

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override;
  void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override;

  int num_packs_;
  std::unique_ptr<internal::NcclEngine> engine_;
  HostAllReduce host_;
  std::atomic<bool> warned_{false};
};

}  // namespace tutti
