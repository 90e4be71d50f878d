// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_plan.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/collectives/nccl/nccl_group.h"
#include "tutti/collectives/reduction_tree.h"

namespace tutti::internal {
namespace {

[[noreturn]] void refuse_placement(size_t tensor, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument,
              message("NcclAllReduce: tensor ", tensor, " of the batch ", reason));
}

void check_gpus(size_t tensor, const std::vector<c10::Device>& devices) {
  for (size_t r = 0; r < devices.size(); ++r) {
    if (!devices[r].is_cuda()) {
      refuse_placement(tensor, message("is on ", devices[r], " for replica ", r,
                                       "; NCCL reduces between CUDA devices. Use HostAllReduce, "
                                       "which accepts any placement."));
    }
    const auto same =
        std::find(devices.begin(), devices.begin() + static_cast<int64_t>(r), devices[r]);
    if (same != devices.begin() + static_cast<int64_t>(r)) {
      refuse_placement(
          tensor, message("is on ", devices[r], " for replicas ", same - devices.begin(), " and ",
                          r, "; NCCL needs a device of its own for each replica."));
    }
  }
}

// True for a tensor that goes through NCCL.
bool place(const AllReduceBatch& batch, size_t tensor, const NcclDeviceOf& device_of,
           std::vector<c10::Device>& all) {
  std::vector<c10::Device> devices;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    devices.push_back(device_of(r, batch.input(r, tensor)));
  }
  if (std::all_of(devices.begin(), devices.end(), [](const auto& d) { return d.is_cpu(); })) {
    return false;
  }
  check_gpus(tensor, devices);
  if (all.empty()) all = devices;
  for (size_t r = 0; r < all.size(); ++r) {
    if (devices[r] == all[r]) continue;
    refuse_placement(
        tensor, message("is on ", devices[r], " for replica ", r, ", whose other tensors are on ",
                        all[r], "; all tensors of a replica must be on one device."));
  }
  return true;
}

}  // namespace

NcclPlan plan_nccl(const AllReduceBatch& batch, int num_packs, const NcclDeviceOf& device_of) {
  NcclPlan plan;
  std::vector<std::pair<at::ScalarType, std::vector<size_t>>> by_dtype;
  for (size_t t = 0; t < batch.tensors(); ++t) {
    if (!place(batch, t, device_of, plan.devices)) {
      plan.host_tensors.push_back(t);
      continue;
    }
    const at::ScalarType dtype = batch.like(t).scalar_type();
    auto found = std::find_if(by_dtype.begin(), by_dtype.end(),
                              [dtype](const auto& each) { return each.first == dtype; });
    if (found == by_dtype.end()) found = by_dtype.insert(found, {dtype, {}});
    found->second.push_back(t);
  }
  const auto replicas = static_cast<int64_t>(batch.replicas());
  for (const auto& [dtype, tensors] : by_dtype) {
    std::vector<int64_t> numels;
    for (const size_t t : tensors) numels.push_back(batch.like(t).numel());
    for (std::vector<PackPart>& parts : concat_and_split(numels, num_packs)) {
      int64_t numel = 0;
      for (PackPart& part : parts) {
        numel += part.numel();
        part.tensor = tensors[part.tensor];
      }
      plan.packs.push_back({dtype, reduced_dtype(batch.op(), dtype), std::move(parts), numel,
                            (numel + replicas - 1) / replicas});
    }
  }
  return plan;
}

}  // namespace tutti::internal
