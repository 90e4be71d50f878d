// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/hierarchical_copy_all_reduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>

#include "tutti/base/error.h"
#include "tutti/collectives/internal/hierarchical_copy.h"
#include "tutti/collectives/internal/host_batch.h"
#include "tutti/collectives/internal/reduce_components.h"
#include "tutti/collectives/packing.h"

namespace tutti {
namespace {

using Pack = std::vector<PackPart>;

bool concatenate_well(const AllReduceBatch& batch, size_t a, size_t b) {
  if (batch.like(a).scalar_type() != batch.like(b).scalar_type()) return false;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    if (batch.input(r, a).device() != batch.input(r, b).device()) return false;
  }
  return true;
}

// Tensors that can be concatenated, in the order of the batch.
std::vector<std::vector<size_t>> alike_tensors(const AllReduceBatch& batch) {
  std::vector<std::vector<size_t>> groups;
  for (size_t t = 0; t < batch.tensors(); ++t) {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& group) {
      return concatenate_well(batch, group[0], t);
    });
    if (found != groups.end()) {
      found->push_back(t);
    } else {
      groups.push_back({t});
    }
  }
  return groups;
}

std::vector<Pack> packs_of(const AllReduceBatch& batch, const std::vector<size_t>& tensors,
                           int num_packs) {
  std::vector<int64_t> numels;
  for (const size_t t : tensors) numels.push_back(batch.like(t).numel());
  std::vector<Pack> packs = concat_and_split(numels, num_packs);
  for (Pack& pack : packs) {
    for (PackPart& part : pack) part.tensor = tensors[part.tensor];
  }
  return packs;
}

at::Tensor view_of(const at::Tensor& tensor, const PackPart& part) {
  return tensor.view({-1}).narrow(0, part.begin, part.numel());
}

void reduce_between_devices(const AllReduceBatch& batch, const Pack& pack,
                            internal::GroupMains mains) {
  std::vector<at::Tensor> components;
  for (size_t r = 0; r < batch.replicas(); ++r) {
    std::vector<at::Tensor> parts;
    for (const PackPart& part : pack) parts.push_back(view_of(batch.input(r, part.tensor), part));
    components.push_back(parts.size() == 1 ? parts[0] : at::cat(parts));
  }
  const std::vector<at::Tensor> results =
      internal::hierarchical_all_reduce(batch.op(), components, mains);
  for (size_t r = 0; r < batch.replicas(); ++r) {
    int64_t begin = 0;
    for (const PackPart& part : pack) {
      view_of(batch.output(r, part.tensor), part).copy_(results[r].narrow(0, begin, part.numel()));
      begin += part.numel();
    }
  }
}

}  // namespace

HierarchicalCopyAllReduce::HierarchicalCopyAllReduce(int num_packs) : num_packs_(num_packs) {
  if (num_packs < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("HierarchicalCopyAllReduce: num_packs is ", num_packs,
                        "; it must be 0 (no packing) or more."));
  }
}

at::Tensor HierarchicalCopyAllReduce::do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                                                const CommunicationOptions&) {
  const std::vector<at::Tensor> components(value.begin(), value.end());
  return internal::reduce_components(op, components, arena());
}

// Packs have no element in common, so members need not know of each other.
void HierarchicalCopyAllReduce::do_all_reduce(const AllReduceBatch& batch,
                                              const CommunicationOptions&) {
  size_t index = 0;
  for (const std::vector<size_t>& tensors : alike_tensors(batch)) {
    const bool host = internal::in_host_memory(batch, tensors[0]);
    for (const Pack& pack : packs_of(batch, tensors, num_packs_)) {
      const internal::GroupMains mains = internal::group_mains(index++, batch.replicas());
      if (mains.first % batch.members() != batch.member()) continue;
      if (!host) {
        reduce_between_devices(batch, pack, mains);
        continue;
      }
      for (const PackPart& part : pack) {
        internal::reduce_range(batch, part.tensor, part.begin, part.end);
      }
    }
  }
}

}  // namespace tutti
