// SPDX-License-Identifier: Apache-2.0
//
// The canonical reduction: a fixed binary tree over global replica ids. On each
// level the neighbours 2i and 2i+1 are combined, the lower id on the left; an odd
// last one moves up. For five replicas: ((0+1) + (2+3)) + 4.
//
// Every path of the library reduces by this tree, so that the bits of a result
// depend on the replicas alone, not on threads, chunks, processes or hosts. Sums
// are not contracted, the mean divides once at the end, and 16-bit floats are
// added as float32 and rounded once.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/values/reduce_op.h"

namespace tutti {

/// Throws kInvalidArgument when values of `dtype` cannot be combined by `op`:
/// bool and quantised types never, complex numbers not by kMin and kMax.
/// The message begins with `who`.
void check_reducible(const char* who, ReduceOp op, at::ScalarType dtype);

/// The dtype of a reduction: that of its input, except that the mean of integers
/// is a float (float64 for 32 and 64 bits, else float32).
at::ScalarType reduced_dtype(ReduceOp op, at::ScalarType dtype);

/// Reduces elements [begin, end) of inputs in host memory into each output.
///
/// inputs[g] is the contribution of replica g; null stands for zeros (kSum and
/// kMean only). An output may be one of the inputs. `dtype` is that of inputs and
/// outputs, so kMean of integers is not possible here. Thread-safe; allocates
/// nothing after its first call on a thread.
void reduce_tree(ReduceOp op, at::ScalarType dtype, std::span<const void* const> inputs,
                 std::span<void* const> outputs, int64_t begin, int64_t end);

/// A node of the tree: all replicas [begin, end). A plain value.
struct TreeNode {
  int begin;
  int end;
  bool operator==(const TreeNode&) const = default;
};

/// The maximal nodes that lie inside replicas [begin, end) of a tree over `replicas`: what the
/// owner of those replicas can compute alone.
std::vector<TreeNode> maximal_nodes(int replicas, int begin, int end);

/// Computes a node in host memory, of node_dtype(), from the replicas below it. The node may be one
/// of the inputs if their dtype is that of the node.
void reduce_to_node(ReduceOp op, at::ScalarType dtype, std::span<const void* const> inputs,
                    void* node, int64_t begin, int64_t end);

/// The tree above nodes that cover all replicas, in order. Immutable.
class NodeTree {
 public:
  NodeTree(int replicas, std::vector<TreeNode> nodes);

  const std::vector<TreeNode>& nodes() const { return nodes_; }

  /// Reduces elements [begin, end) of nodes in host memory, which are of node_dtype(), into each
  /// output, which is of `dtype`. An output may be one of the inputs if the dtypes are equal.
  void reduce(ReduceOp op, at::ScalarType dtype, std::span<const void* const> inputs,
              std::span<void* const> outputs, int64_t begin, int64_t end) const;

 private:
  struct Step {
    int left;
    int right;
  };

  int plan(int first, int width);

  int replicas_;
  std::vector<TreeNode> nodes_;
  std::vector<Step> steps_;  // empty: the nodes are the leaves of a canonical tree
};

/// Computes the same tree by LibTorch's operators, on the device of the first input: for
/// memory that the host cannot access. Inputs have equal shapes and dtypes.
at::Tensor reduce_tree(ReduceOp op, std::span<const at::Tensor> inputs);

/// The dtype of inner nodes of the tree: float32 for 16-bit floats, int64 for the mean of
/// integers (so that a sum of int8 does not wrap), else the dtype of the inputs.
at::ScalarType node_dtype(ReduceOp op, at::ScalarType dtype);

/// Computes one node of the tree by LibTorch's operators on the device of the first child,
/// neither divided nor rounded. The children are inputs of `dtype`, or nodes.
at::Tensor reduce_node(ReduceOp op, at::ScalarType dtype, std::span<const at::Tensor> children);

/// Returns the result of a tree over `replicas` inputs of `dtype`, given its root.
at::Tensor finish_tree(ReduceOp op, at::ScalarType dtype, const at::Tensor& root, int64_t replicas);

/// Returns the mean of `count` values of `dtype`, given their sum: divided, then rounded once.
at::Tensor divide_sum(const at::Tensor& sum, int64_t count, at::ScalarType dtype);

/// Reduces C++ scalars by the same tree.
template <class T, class Combine>
T reduce_tree_scalars(std::span<T> values, Combine combine) {
  for (size_t n = values.size(); n > 1; n = (n + 1) / 2) {
    for (size_t i = 0; i + 1 < n; i += 2) values[i / 2] = combine(values[i], values[i + 1]);
    if (n % 2 == 1) values[n / 2] = values[n - 1];
  }
  return values[0];
}

}  // namespace tutti
