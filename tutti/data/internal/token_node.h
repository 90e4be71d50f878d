// SPDX-License-Identifier: Apache-2.0
//
// The base of transforms that pass elements on unchanged: they work on indices if the source
// supports random access, on lists of indices if the elements are batches of such a source, else on
// the elements themselves.

#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/data/node.h"

namespace tutti::data {

/// Derived has `template <class Token> std::unique_ptr<Stream<Token>> stream(Iteration&) const`.
/// Immutable, as every Node.
template <class Derived>
class TokenNode : public Node {
 public:
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    if (indexed() != nullptr) return stream_of_indices(*this, iteration);
    return derived().template stream<Element>(iteration);
  }
  const Indexed* indexed() const override { return input().indexed(); }
  std::unique_ptr<IndexStream> iterate_indices(Iteration& iteration) const override {
    return derived().template stream<int64_t>(iteration);
  }
  const Node* batched_rows() const override { return input().batched_rows(); }
  std::unique_ptr<IndexBatchStream> iterate_index_batches(Iteration& iteration) const override {
    return derived().template stream<std::vector<int64_t>>(iteration);
  }
  ElementSpec spec() const override { return input().spec(); }
  NodeTraits traits() const override { return {.batch_size = input().batch_size()}; }

 protected:
  explicit TokenNode(NodePtr from) : Node({std::move(from)}) {}

  template <class Token>
  std::unique_ptr<Stream<Token>> input_stream(Iteration& iteration) const {
    if constexpr (std::is_same_v<Token, Element>) {
      return input().iterate(iteration);
    } else if constexpr (std::is_same_v<Token, int64_t>) {
      return input().iterate_indices(iteration);
    } else {
      return input().iterate_index_batches(iteration);
    }
  }

 private:
  const Derived& derived() const { return static_cast<const Derived&>(*this); }
};

}  // namespace tutti::data
