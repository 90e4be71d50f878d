// SPDX-License-Identifier: Apache-2.0
//
// An all-reduce in two groups: each is reduced on its main device, then both on the
// main device of the first; the result goes back the same way. Only one node and one
// result cross between the groups.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/values/reduce_op.h"

namespace tutti::internal {

/// The devices that add for the two groups, as positions in the list of devices. A plain value.
struct GroupMains {
  size_t first;
  size_t second;

  bool operator==(const GroupMains&) const = default;
};

/// Packs take turns, so that no device adds for all of them.
GroupMains group_mains(size_t pack, size_t devices);

/// Component r lies on device r, and so does result r; results on one device may be one
/// tensor, and none of them is a component unless there is only one. The groups are the
/// two subtrees at the root of the canonical tree, so the bits are those of the tree.
std::vector<at::Tensor> hierarchical_all_reduce(ReduceOp op, std::span<const at::Tensor> components,
                                                GroupMains mains);

}  // namespace tutti::internal
