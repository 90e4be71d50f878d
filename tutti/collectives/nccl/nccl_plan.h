// SPDX-License-Identifier: Apache-2.0
//
// What an all-reduce by NCCL does with a batch, the same on every member: which
// tensors go through NCCL, between which devices, in which packs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/packing.h"

namespace tutti::internal {

/// Flat elements that are exchanged together. Every replica owns `chunk` of them, so the buffers
/// are padded to chunk * replicas. A plain value.
struct NcclPack {
  at::ScalarType dtype;
  at::ScalarType reduced_dtype;
  std::vector<PackPart> parts;  ///< `tensor` counts in the batch.
  int64_t numel;
  int64_t chunk;

  size_t bytes() const { return static_cast<size_t>(numel) * c10::elementSize(dtype); }
};

struct NcclPlan {
  std::vector<c10::Device> devices;  ///< One per replica; empty if nothing is on a GPU.
  std::vector<NcclPack> packs;
  std::vector<size_t> host_tensors;
};

/// The device of a replica's tensor.
using NcclDeviceOf = std::function<c10::Device(size_t replica, const at::Tensor& tensor)>;

/// Throws kInvalidArgument for a tensor that lies neither in host memory on all replicas
/// nor on a different GPU for each, and if these GPUs differ between tensors.
NcclPlan plan_nccl(const AllReduceBatch& batch, int num_packs, const NcclDeviceOf& device_of);

}  // namespace tutti::internal
