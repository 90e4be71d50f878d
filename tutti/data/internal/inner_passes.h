// SPDX-License-Identifier: Apache-2.0
//
// Shared by the nodes that begin passes inside a pass: flat_map, interleave, repeat. The orders of
// an inner pass depend only on its number, not on how far a thread has read ahead.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "tutti/data/iteration.h"

namespace tutti::data {

/// Counts the passes of a node; shared with the copies that rewriting makes of it.
using PassCounter = std::shared_ptr<std::atomic<uint64_t>>;
inline PassCounter make_pass_counter() { return std::make_shared<std::atomic<uint64_t>>(0); }

/// Makes the inner passes of one stream. Its const functions may run concurrently.
class InnerPasses {
 public:
  InnerPasses(Iteration& iteration, const Node& node, std::atomic<uint64_t>& passes)
      : iteration_(iteration),
        node_(node),
        passes_(passes),
        order_(iteration.next_order(node, 0, 0, passes)) {}

  Iteration::Stage& stage() const { return iteration_.stage(node_); }

  /// The pass over the dataset that a function returned for element `number`.
  std::unique_ptr<Iteration> inner(int64_t number) const {
    return iteration_.inner(order_.mixed(static_cast<uint64_t>(number)));
  }
  /// Pass `number` over the same nodes.
  std::unique_ptr<Iteration> again(int64_t number) const {
    return iteration_.again(order_.mixed(static_cast<uint64_t>(number)));
  }
  Iteration& iteration() const { return iteration_; }

  void save(StateWriter& state) const { order_.save(state); }
  void restore(StateReader& state) {
    order_ = Iteration::Order::restore(state);
    iteration_.set_order(node_, order_, passes_);
  }

 private:
  Iteration& iteration_;
  const Node& node_;
  std::atomic<uint64_t>& passes_;
  Iteration::Order order_;
};

}  // namespace tutti::data
