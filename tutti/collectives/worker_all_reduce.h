// SPDX-License-Identifier: Apache-2.0
//
// Reduces values of all replicas of all workers by the canonical tree, over any lane. Each
// worker computes the nodes of the tree that lie among its own replicas and sends parts of them to
// the owners of those parts, which finish the tree; then every rank gets the results of all ranks.
//
//   block:  | part of rank 0 | part of rank 1 | ... |      of every node, and of the result
//   gather: rank r sends part o of its nodes to rank o, which reduces them
//   spread: rank o sends the reduced part to every rank
//
// A few blocks are under way simultaneously, in a fixed order of messages.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <c10/util/SmallVector.h>

#include "tutti/collectives/reduction_tree.h"
#include "tutti/group/worker_group.h"

namespace tutti {

/// Which nodes each of the workers holds; worker w has the replicas [w * local, (w + 1) * local).
/// Immutable.
class WorkerTree {
 public:
  WorkerTree(int workers, int local_replicas);

  int workers() const { return static_cast<int>(first_node_.size()) - 1; }
  int local_replicas() const { return local_; }
  int replicas() const { return workers() * local_; }

  /// The nodes of a worker, and where they begin among all of tree().nodes().
  std::span<const TreeNode> nodes(int worker) const;
  size_t first_node(int worker) const { return first_node_[static_cast<size_t>(worker)]; }
  size_t max_nodes() const { return max_nodes_; }
  const NodeTree& tree() const { return *tree_; }

 private:
  int local_;
  size_t max_nodes_ = 0;
  std::vector<size_t> first_node_;
  std::unique_ptr<const NodeTree> tree_;
};

/// What to reduce. All memory is host memory.
struct WorkerReduction {
  ReduceOp op = ReduceOp::kSum;
  at::ScalarType dtype = at::kFloat;  ///< The outputs' dtype; nodes have node_dtype(op, dtype).
  int64_t count = 0;
  /// The memory of this worker's nodes, in the order of WorkerTree::nodes().
  c10::SmallVector<const void*, 4> nodes = {};
  /// Each gets the result. One may be a node, if the dtypes are equal.
  c10::SmallVector<void*, 4> outputs = {};
  /// Called before elements [begin, end) of the nodes are first read; may be empty.
  std::function<void(int64_t begin, int64_t end)> prepare = nullptr;
};

/// Computes elements [begin, end) of the nodes of a worker from its local replicas. A node that is
/// one replica, and shares the memory of that replica's input, is not written.
void reduce_own_nodes(const WorkerTree& tree, int worker, ReduceOp op, at::ScalarType dtype,
                      c10::ArrayRef<const void*> inputs, c10::ArrayRef<const void*> nodes,
                      int64_t begin, int64_t end);

/// Begins a reduction; it sets operation.kind, op and dtype itself. The transfer's advance() and
/// wait() advance the reduction.
std::unique_ptr<Transfer> start_all_reduce(Lane& lane, const WorkerTree& tree,
                                           WorkerReduction reduction, Operation operation,
                                           Deadline deadline);

}  // namespace tutti
