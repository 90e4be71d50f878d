// SPDX-License-Identifier: Apache-2.0
//
// The default between CPU replicas: reduces where the tensors lie, at memory
// speed, with the threads of all replicas. Tensors of other devices go through
// LibTorch's operators, with the same tree.

#pragma once

#include <memory>
#include <vector>

#include "tutti/collectives/cross_device_ops.h"

namespace tutti {

/// Every element is written once, from one pass over all inputs. Thread-safe.
class HostAllReduce final : public CrossDeviceOps {
 public:
  using CrossDeviceOps::CrossDeviceOps;

  /// Buckets in host memory are reduced by the threads of the replicas.
  std::unique_ptr<GradientReducer> make_gradient_reducer(
      std::vector<GradientBucket> buckets, const CommunicationOptions& options) override;

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override;
  void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override;
};

}  // namespace tutti
