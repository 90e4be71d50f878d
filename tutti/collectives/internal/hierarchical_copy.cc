// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/internal/hierarchical_copy.h"

#include <bit>

#include "tutti/collectives/reduction_tree.h"

namespace tutti::internal {

GroupMains group_mains(size_t pack, size_t devices) {
  return {pack % devices, (pack + devices / 2) % devices};
}

std::vector<at::Tensor> hierarchical_all_reduce(ReduceOp op, std::span<const at::Tensor> components,
                                                GroupMains mains) {
  const size_t devices = components.size();
  const at::ScalarType dtype = components[0].scalar_type();
  if (devices == 1) return {finish_tree(op, dtype, reduce_node(op, dtype, components), 1)};

  const size_t split = std::bit_ceil(devices) / 2;  // the lower ids are a full subtree
  const at::Device first_main = components[mains.first].device();
  const at::Device second_main = components[mains.second].device();
  const auto reduce_group = [&](size_t begin, size_t end, at::Device main) {
    std::vector<at::Tensor> members;
    for (size_t r = begin; r < end; ++r) members.push_back(components[r].to(main));
    return reduce_node(op, dtype, members);
  };
  const at::Tensor nodes[] = {reduce_group(0, split, first_main),
                              reduce_group(split, devices, second_main)};
  const at::Tensor at_first =
      finish_tree(op, dtype, reduce_node(op, dtype, nodes), static_cast<int64_t>(devices));
  const at::Tensor at_second = at_first.to(second_main);
  std::vector<at::Tensor> results;
  for (size_t r = 0; r < devices; ++r) {
    results.push_back((r < split ? at_first : at_second).to(components[r].device()));
  }
  return results;
}

}  // namespace tutti::internal
