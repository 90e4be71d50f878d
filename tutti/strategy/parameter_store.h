// SPDX-License-Identifier: Apache-2.0
//
// Where the parameters of an optimizer are kept and updated. The optimizer sums the gradients of
// this process, decides whether and how to update, and hands the sums to a store, chunk by chunk.
// The store of train/ is the memory of the process; another may send the sums to where the
// parameters are.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/collectives/gradient_reducer.h"
#include "tutti/update_rules/update_rule.h"

namespace tutti {

/// A slot (of a layout of parameters) whose values differ between replica 0 and another replica;
/// its code grows with the slot. A plain value.
struct Difference {
  size_t slot = 0;
  size_t replica = 0;

  int64_t code() const { return static_cast<int64_t>(slot << 16 | replica); }
  static Difference of(int64_t code) {
    return {static_cast<size_t>(code) >> 16, static_cast<size_t>(code) & 0xffff};
  }
};

/// In a step that updates, the replicas call update() once for every chunk, together, and then each
/// calls commit(), all in one meeting; after the meeting each calls pull(). No replica computes
/// with its parameters between its first update() and its pull(). Within each of these phases the
/// replicas call concurrently, each from its own thread.
class ParameterStore {
 public:
  /// How the chunks of a step are updated: the same for all of them.
  struct Step {
    std::span<const UpdateRule> rules;  ///< One for each group of parameters.
    double factor = 1;                  ///< Gradients are multiplied by it first.
    int64_t updates = 0;                ///< How many were made before this one.
    bool check = false;                 ///< Compare the parameters of the replicas.
  };

  ParameterStore() = default;
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Updates the parameters in a chunk by its sum of gradients; afterwards gradients that can be
  /// read hold the product with the factor. Chunks may be updated concurrently. With `check`,
  /// returns the code of a Difference that existed before, or -1.
  virtual int64_t update(const GradientChunk& chunk, const Step& step) = 0;

  /// Says that the replica has no more chunks. When the last one says so the update is complete.
  virtual void commit(size_t replica) = 0;

  /// Makes the parameters of the replica those of the store.
  virtual void pull(size_t replica) = 0;
};

}  // namespace tutti
