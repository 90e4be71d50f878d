// SPDX-License-Identifier: Apache-2.0
//
// Trees that are cut into nodes: what each worker can compute alone, and what is left above it.

#include <cstring>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/collectives/reduction_tree.h"
#include "tutti/collectives/worker_all_reduce.h"

#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti::node_tree_test {

// All nodes of the tree over `replicas`, by its recursive definition.
void collect(int first, int count, std::vector<TreeNode>& nodes) {
  nodes.push_back({first, first + count});
  if (count == 1) return;
  int left = 1;
  while (left * 2 < count) left *= 2;
  collect(first, left, nodes);
  collect(first + left, count - left, nodes);
}

std::vector<TreeNode> inside(const std::vector<TreeNode>& nodes, int begin, int end) {
  std::vector<TreeNode> found;
  for (const TreeNode& each : nodes) {
    if (each.begin >= begin && each.end <= end) found.push_back(each);
  }
  return found;
}

TEST(MaximalNodes, AreThoseOfARangeWithoutAParentInIt) {
  for (int replicas = 1; replicas <= 40; ++replicas) {
    std::vector<TreeNode> nodes;
    collect(0, replicas, nodes);
    for (int begin = 0; begin < replicas; ++begin) {
      for (int end = begin + 1; end <= replicas; ++end) {
        const std::vector<TreeNode> candidates = inside(nodes, begin, end);
        std::vector<TreeNode> expected;
        for (int at = begin; at < end;) {
          TreeNode widest{at, at};
          for (const TreeNode& each : candidates) {
            if (each.begin == at && each.end > widest.end) widest = each;
          }
          expected.push_back(widest);
          ASSERT_GT(widest.end, at);
          at = widest.end;
        }
        ASSERT_EQ(maximal_nodes(replicas, begin, end), expected)
            << replicas << " replicas, [" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(MaximalNodes, AreOneForAPowerOfTwo) {
  for (const int local : {1, 2, 4, 8}) {
    for (int workers = 1; workers <= 40 / local; ++workers) {
      const WorkerTree tree(workers, local);
      EXPECT_EQ(tree.max_nodes(), 1U);
      for (int w = 0; w < workers; ++w) {
        ASSERT_EQ(tree.nodes(w).size(), 1U);
        EXPECT_EQ(tree.nodes(w)[0], (TreeNode{w * local, (w + 1) * local}));
        EXPECT_EQ(tree.first_node(w), static_cast<size_t>(w));
      }
    }
  }
}

// Values of one dtype for each replica, reduced in two steps: nodes of workers, then the rest.
template <class T>
void expect_bits_of_the_tree(int workers, int local, ReduceOp op, bool in_place) {
  constexpr int64_t kCount = 37;
  const WorkerTree tree(workers, local);
  const auto replicas = static_cast<size_t>(tree.replicas());
  std::vector<std::vector<T>> values(replicas, std::vector<T>(kCount));
  test::RandomNumbers numbers(replicas);
  for (auto& each : values) {
    for (T& number : each) number = numbers.of<T>();
  }
  using I = test::Inner<T>;
  const at::ScalarType dtype = c10::CppTypeToScalarType<T>::value;
  ASSERT_EQ(node_dtype(op, dtype), c10::CppTypeToScalarType<I>::value);
  std::vector<std::vector<I>> nodes;
  std::vector<const void*> inputs;
  for (const TreeNode& node : tree.tree().nodes()) {
    std::vector<const void*> below;
    for (int g = node.begin; g < node.end; ++g) {
      below.push_back(values[static_cast<size_t>(g)].data());
    }
    nodes.emplace_back(kCount);
    reduce_to_node(op, dtype, below, nodes.back().data(), 0, kCount);
  }
  for (const auto& each : nodes) inputs.push_back(each.data());
  std::vector<T> separate(kCount);
  std::vector<T> second(kCount);
  std::vector<void*> outputs = {separate.data(), second.data()};
  if (in_place) outputs[0] = nodes.back().data();
  // The nodes are computed in two ranges.
  tree.tree().reduce(op, dtype, inputs, outputs, 0, 20);
  tree.tree().reduce(op, dtype, inputs, outputs, 20, kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const T expected =
        test::expected_reduction<T>(op, replicas, [&](size_t r) { return values[r][i]; });
    for (const void* output : outputs) {
      ASSERT_EQ(std::memcmp(static_cast<const T*>(output) + i, &expected, sizeof(T)), 0)
          << workers << "x" << local << " " << op << " of " << dtype << ", element " << i
          << (in_place ? ", in place" : "");
    }
  }
}

TEST(NodeTree, HasTheBitsOfTheCanonicalTreeForAllShapes) {
  for (int local = 1; local <= 40; ++local) {
    for (int workers = 1; workers * local <= 40; ++workers) {
      for (const bool in_place : {false, true}) {
        expect_bits_of_the_tree<float>(workers, local, ReduceOp::kSum, in_place);
        expect_bits_of_the_tree<float>(workers, local, ReduceOp::kMean, in_place);
      }
      expect_bits_of_the_tree<at::Half>(workers, local, ReduceOp::kSum, false);
      expect_bits_of_the_tree<at::BFloat16>(workers, local, ReduceOp::kMean, false);
      expect_bits_of_the_tree<double>(workers, local, ReduceOp::kProduct, true);
      expect_bits_of_the_tree<int32_t>(workers, local, ReduceOp::kMin, true);
      expect_bits_of_the_tree<int64_t>(workers, local, ReduceOp::kMax, false);
      expect_bits_of_the_tree<c10::complex<float>>(workers, local, ReduceOp::kMean, false);
      expect_bits_of_the_tree<c10::complex<double>>(workers, local, ReduceOp::kProduct, false);
    }
  }
}

}  // namespace tutti::node_tree_test
