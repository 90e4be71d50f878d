// SPDX-License-Identifier: Apache-2.0
//
// A pipeline is a graph of nodes: sources, and transforms with inputs. Nodes are immutable and
// shared; every pass over a node creates new streams. Distribution rewrites the graph
// (auto_shard.h), so a node can describe itself.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/iteration.h"
#include "tutti/data/stream.h"
#include "tutti/nest/element.h"

namespace tutti::data {

class Node;
using NodePtr = std::shared_ptr<const Node>;

/// Cardinalities that are not counts.
inline constexpr int64_t kInfinite = -1;
inline constexpr int64_t kUnknown = -2;

/// Random access to elements. Thread-safe: threads of `map` and of several passes read it
/// concurrently.
class Indexed {
 public:
  virtual ~Indexed() = default;
  virtual int64_t size() const = 0;
  virtual Element get(int64_t index) const = 0;

  /// The elements of `indices` as one batch.
  virtual Element get_batch(std::span<const int64_t> indices) const = 0;
};

/// What caches and the rewriting of pipelines must know about a node. The defaults suit most nodes.
/// Pointers and functions are valid as long as the node. A plain value.
struct NodeTraits {
  /// The size of the batches it creates or passes on, if known.
  std::optional<int64_t> batch_size = std::nullopt;

  /// What distinguishes it from other nodes of its name, for caches, such as "(3, 1)".
  std::string arguments = "";

  /// Whether its elements depend on outside events.
  bool may_wait = false;

  /// Whether it is shard(kShardHint, ...), whose number of shards is not set yet.
  bool is_shard_hint = false;

  /// Whether it only changes the order of elements.
  bool reorders = false;

  /// Whether it keeps elements for later passes.
  bool keeps_elements = false;

  /// The same node with elements in the order of its input, if it delivers them as they get ready.
  NodePtr in_order = nullptr;

  /// Returns the dataset of an element, if the node turns each element into a dataset.
  std::function<NodePtr(Element)> expand = nullptr;

  /// The files it reads, if it is a source that reads files one after the other; with_files()
  /// returns the same source over different files.
  const std::vector<std::string>* files = nullptr;
  std::function<NodePtr(std::vector<std::string>)> with_files = nullptr;
};

/// Immutable, hence thread-safe.
class Node : public std::enable_shared_from_this<Node> {
 public:
  virtual ~Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// "batch", for messages and positions.
  virtual std::string_view name() const = 0;

  const std::vector<NodePtr>& inputs() const { return inputs_; }

  /// This node with other inputs.
  virtual NodePtr with_inputs(std::vector<NodePtr> inputs) const = 0;

  /// Starts a new pass at the first element.
  virtual std::unique_ptr<ElementStream> iterate(Iteration& iteration) const = 0;

  /// The random-access source behind this node, if every element of the node is an unchanged
  /// element of it; iterate_indices() then yields the indices.
  virtual const Indexed* indexed() const { return nullptr; }
  virtual std::unique_ptr<IndexStream> iterate_indices(Iteration& iteration) const;

  /// The node whose elements are the rows of this node's batches, if those come from a
  /// random-access source with only map() in between; iterate_index_batches() then yields the rows
  /// of each batch.
  virtual const Node* batched_rows() const { return nullptr; }
  virtual std::unique_ptr<IndexBatchStream> iterate_index_batches(Iteration& iteration) const;

  /// The number of elements, kInfinite or kUnknown.
  virtual int64_t cardinality() const { return kUnknown; }

  virtual ElementSpec spec() const { return std::nullopt; }

  /// See NodeTraits. Most transforms pass on the batch size of their input.
  virtual NodeTraits traits() const { return {}; }

  std::optional<int64_t> batch_size() const { return traits().batch_size; }

  /// Whether its elements, or those it is made of, may depend on outside events, so that available
  /// ones must not wait for the next.
  bool may_wait() const;

 protected:
  explicit Node(std::vector<NodePtr> inputs = {}) : inputs_(std::move(inputs)) {}
  const Node& input(size_t i = 0) const { return *inputs_[i]; }

 private:
  std::vector<NodePtr> inputs_;
};

/// The stream of a node whose elements all come from a random-access source.
std::unique_ptr<ElementStream> stream_of_indices(const Node& node, Iteration& iteration);

/// Whether passes over a pipeline may differ in order because some elements are delivered as they
/// get ready.
bool comes_in_any_order(const Node& node);

/// The value common to all nodes, else nullopt.
ElementSpec common_spec(const std::vector<NodePtr>& nodes);
std::optional<int64_t> common_batch_size(const std::vector<NodePtr>& nodes);

/// The smaller of a cardinality, which may be kInfinite or kUnknown, and `limit`.
int64_t at_most(int64_t cardinality, int64_t limit);

/// Stacks the leaves of elements: tensors and numbers become a tensor with one more
/// dimension, strings a vector. Throws kInvalidArgument, naming the first element that
/// does not fit.
Element batch_elements(std::span<Element> elements);

/// batch[row], without the cost of an operator for ordinary tensors.
at::Tensor batch_row(const at::Tensor& batch, int64_t row);

/// Rows [begin, end) of every leaf.
Element slice_batch(const Element& batch, int64_t begin, int64_t end);

/// The number of rows. Throws kInvalidArgument if the leaves differ in it or a leaf has no rows;
/// the message begins with `who`.
int64_t batch_rows(const char* who, const Element& batch);

/// Joins batches into one.
Element concatenate_batches(std::span<const Element> batches);

}  // namespace tutti::data
