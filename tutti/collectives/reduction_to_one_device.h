// SPDX-License-Identifier: Apache-2.0
//
// Copies everything to one device, reduces it there and copies the result to all.
// Works between any devices, and accepts your own function for the sum.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/collectives/cross_device_ops.h"

namespace tutti {

/// The sum of tensors of equal shape and dtype that lie on one device. It must not
/// write to them: in host memory they are the replicas' own. Its result has their
/// shape, and is cast to their dtype. Called without locks, possibly from several threads.
using AccumulationFn = std::function<at::Tensor(const std::vector<at::Tensor>& components)>;

/// Logs at kInfo what it does, the first ten times in a process. Thread-safe.
class ReductionToOneDevice final : public CrossDeviceOps {
 public:
  /// Reduces on `reduce_to_device`, by default on the first destination. For kSum and
  /// kMean by `accumulation_fn`, otherwise by the canonical tree. Throws kInvalidArgument
  /// for a name that is not a device, kUnimplemented for one that is neither CPU nor GPU.
  explicit ReductionToOneDevice(std::optional<std::string> reduce_to_device = {},
                                AccumulationFn accumulation_fn = {});

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override;
  std::vector<at::Tensor> do_reduce_to(ReduceOp op, const PerReplica<at::Tensor>& value,
                                       const Devices& devices,
                                       const CommunicationOptions& options) override;
  at::Tensor do_gather(const PerReplica<at::Tensor>& value, const Devices& devices, int64_t axis,
                       const CommunicationOptions& options) override;
  void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override;

  bool uses_fn(ReduceOp op) const {
    return accumulation_fn_ && (op == ReduceOp::kSum || op == ReduceOp::kMean);
  }
  at::Tensor reduce_on(at::Device device, ReduceOp op, const std::vector<at::Tensor>& value);
  at::Tensor accumulate(ReduceOp op, const std::vector<at::Tensor>& components);

  std::optional<DeviceSpec> reduce_to_device_;
  AccumulationFn accumulation_fn_;
};

}  // namespace tutti
