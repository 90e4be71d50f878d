// SPDX-License-Identifier: Apache-2.0
//
// The path of a pack through two groups of devices, on tensors in host memory; which member reduces
// which pack; the constructor. The rest is in the contract suite.

#include "tutti/collectives/hierarchical_copy_all_reduce.h"

#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/collectives/internal/hierarchical_copy.h"
#include "tutti/collectives/reduction_tree.h"

#include "tests/support/expect_error.h"
#include "tests/support/team.h"
#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti {
namespace {

using internal::group_mains;
using internal::GroupMains;
using internal::hierarchical_all_reduce;
using test::bit_equal;
using test::expected_tensor;
using test::random_tensor;
using test::tensor;

TEST(HierarchicalCopyAllReduce, RefusesANegativeNumberOfPacks) {
  EXPECT_TUTTI_ERROR(HierarchicalCopyAllReduce(-1), ErrorCode::kInvalidArgument,
                     "HierarchicalCopyAllReduce: num_packs is -1; it must be 0 (no packing) or");
  EXPECT_EQ(HierarchicalCopyAllReduce().num_packs(), 1);
  EXPECT_EQ(HierarchicalCopyAllReduce(0).num_packs(), 0);
}

TEST(HierarchicalCopyAllReduce, SpreadsPacksOverTheDevices) {
  EXPECT_EQ(group_mains(0, 8), (GroupMains{0, 4}));
  EXPECT_EQ(group_mains(3, 8), (GroupMains{3, 7}));
  EXPECT_EQ(group_mains(5, 8), (GroupMains{5, 1}));
  EXPECT_EQ(group_mains(9, 8), (GroupMains{1, 5}));
  EXPECT_EQ(group_mains(0, 3), (GroupMains{0, 1}));
  EXPECT_EQ(group_mains(2, 3), (GroupMains{2, 0}));
  EXPECT_EQ(group_mains(4, 1), (GroupMains{0, 0}));
}

TEST(HierarchicalCopyAllReduce, GivesTheBitsOfTheTree) {
  for (size_t devices = 1; devices <= 9; ++devices) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                       at::kInt, at::kLong, at::kComplexDouble}) {
      std::vector<at::Tensor> components;
      for (size_t r = 0; r < devices; ++r) components.push_back(random_tensor({300}, dtype, r));
      for (const ReduceOp op : test::kAllOps) {
        // LibTorch multiplies complex numbers by a different formula, and cannot order them.
        if (at::isComplexType(dtype) && op != ReduceOp::kSum && op != ReduceOp::kMean) continue;
        const at::Tensor wanted = expected_tensor(op, components);
        for (size_t pack = 0; pack < devices; ++pack) {
          const auto results = hierarchical_all_reduce(op, components, group_mains(pack, devices));
          ASSERT_EQ(results.size(), devices);
          for (const at::Tensor& each : results) {
            ASSERT_TRUE(bit_equal(each, wanted)) << op << ", " << devices << " devices";
          }
        }
      }
    }
  }
}

TEST(HierarchicalCopyAllReduce, DoesNotRoundPartialResultsOf16BitFloats) {
  // 2048 + 1 is not a float16, but 2048 + 1 + 1 is.
  const std::vector<at::Tensor> components = {tensor({at::Half(2048)}), tensor({at::Half(1)}),
                                              tensor({at::Half(1)}), tensor({at::Half(0)})};
  for (const at::Tensor& each :
       hierarchical_all_reduce(ReduceOp::kSum, components, group_mains(0, 4))) {
    EXPECT_EQ(each.item<float>(), 2050);
  }
  // A group's sum may be too large for float16 when the mean is not.
  const auto big = tensor({at::Half(60000)});
  const std::vector<at::Tensor> large = {big, big, big};
  EXPECT_EQ(hierarchical_all_reduce(ReduceOp::kMean, large, group_mains(0, 3))[2].item<float>(),
            big.item<float>());
}

// With NaN in all outputs, what one member writes can be seen.
std::vector<bool> written_by(HierarchicalCopyAllReduce& ops, size_t member, size_t members,
                             const std::vector<int64_t>& numels) {
  test::TensorGrid inputs(members);
  test::TensorGrid outputs(members);
  for (size_t r = 0; r < members; ++r) {
    for (const int64_t n : numels) {
      inputs[r].push_back(at::ones({n}));
      outputs[r].push_back(at::full({n}, std::numeric_limits<float>::quiet_NaN()));
    }
  }
  std::vector<at::Tensor*> like;
  for (at::Tensor& each : inputs[0]) like.push_back(&each);
  const auto input = [&](size_t r, size_t t) -> at::Tensor& { return inputs[r][t]; };
  const auto output = [&](size_t r, size_t t) -> at::Tensor& { return outputs[r][t]; };
  const auto memory = [&](size_t r, size_t t) {
    return AllReduceBatch::Memory{inputs[r][t].data_ptr(), outputs[r][t].data_ptr()};
  };
  ops.all_reduce(
      AllReduceBatch(ReduceOp::kSum, members, like, input, output, memory, {member, members, {}}),
      {});
  std::vector<bool> written;
  const at::Tensor all = at::cat(outputs[0]);
  for (int64_t i = 0; i < all.numel(); ++i) written.push_back(all[i].item<float>() > 0);
  for (size_t r = 1; r < members; ++r) {
    EXPECT_TRUE(bit_equal(at::cat(outputs[r]), all)) << "a pack is written to all or none";
  }
  return written;
}

TEST(HierarchicalCopyAllReduce, ReducesAPackOnTheMemberOfItsMainDevice) {
  using Written = std::vector<bool>;
  HierarchicalCopyAllReduce three_packs(3);  // elements 0-1, 2-3, 4-6; the third is member 0's
  EXPECT_EQ(written_by(three_packs, 0, 2, {3, 4}), (Written{1, 1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(written_by(three_packs, 1, 2, {3, 4}), (Written{0, 0, 1, 1, 0, 0, 0}));
  HierarchicalCopyAllReduce no_packing(0);
  EXPECT_EQ(written_by(no_packing, 0, 2, {3, 4}), (Written{1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(written_by(no_packing, 1, 2, {3, 4}), (Written{0, 0, 0, 1, 1, 1, 1}));
  HierarchicalCopyAllReduce one_pack;
  EXPECT_EQ(written_by(one_pack, 0, 3, {2, 1}), (Written{1, 1, 1}));
  EXPECT_EQ(written_by(one_pack, 2, 3, {2, 1}), (Written{0, 0, 0}));
}

}  // namespace
}  // namespace tutti
