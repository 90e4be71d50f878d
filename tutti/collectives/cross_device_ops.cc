// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/cross_device_ops.h"

#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/nest/leaf.h"

namespace tutti {

CrossDeviceOps::CrossDeviceOps(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {
  if (arena_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "CrossDeviceOps: the arena is null.");
  }
}

at::Tensor CrossDeviceOps::reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                  const CommunicationOptions& options) {
  options.validate();
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].defined()) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("CrossDeviceOps::reduce: the component of replica ", i,
                          " is an undefined tensor."));
    }
    if (value[i].sizes() != value[0].sizes() || value[i].scalar_type() != value[0].scalar_type()) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("CrossDeviceOps::reduce: replica 0 has ", describe(value[0]),
                          " but replica ", i, " has ", describe(value[i]),
                          ". Components must be alike; give Strategy::reduce an axis if they "
                          "differ along it."));
    }
  }
  check_reducible("CrossDeviceOps::reduce", op, value[0].scalar_type());
  return do_reduce(op, value, options);
}

void CrossDeviceOps::all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) {
  options.validate();
  do_all_reduce(batch, options);
}

void CrossDeviceOps::do_all_reduce(const AllReduceBatch& batch,
                                   const CommunicationOptions& options) {
  if (batch.member() != 0) return;
  for (size_t t = 0; t < batch.tensors(); ++t) {
    std::vector<at::Tensor> components;
    for (size_t r = 0; r < batch.replicas(); ++r) components.push_back(batch.input(r, t));
    const at::Tensor reduced =
        do_reduce(batch.op(), PerReplica<at::Tensor>(std::move(components)), options);
    for (size_t r = 0; r < batch.replicas(); ++r) batch.output(r, t).copy_(reduced);
  }
}

}  // namespace tutti
