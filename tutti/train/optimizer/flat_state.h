// SPDX-License-Identifier: Apache-2.0
//
// Optimizer state in flat buffers, and the fused update of one chunk. There is one copy of the
// state in the process, whatever the number of replicas: each updates a part of it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/device/arena.h"
#include "tutti/strategy/parameter_store.h"
#include "tutti/train/optimizer/flat_parameters.h"
#include "tutti/update_rules/update_rule.h"

namespace tutti::internal {

/// The store of one process, whose parameters are where the replicas use them: there is nothing to
/// commit or to pull. Chunks may be updated concurrently; every other call must be alone.
class FlatState final : public ParameterStore {
 public:
  explicit FlatState(FlatParameters& flat);

  /// Whether the rules need state that does not exist yet.
  bool lacks_state(std::span<const UpdateRule> rules) const;

  /// Adds what the rules need. From now on, `updates` having been made, the parameters in `live`
  /// are updated, and the others are not.
  void prepare(std::span<const UpdateRule> rules, const std::vector<uint8_t>& live,
               const std::vector<GradientChunk>& chunks, int64_t updates);

  /// Takes over the state of another layout of the same parameters.
  void take_over(const FlatState& old);

  /// Updates the parameters of all replicas by the gradients of the first.
  int64_t update(const GradientChunk& chunk, const Step& step) override;
  void commit(size_t) override {}
  void pull(size_t) override {}

  /// Copies of the states of a parameter, in its shape; none before its first update.
  std::vector<at::Tensor> states_of(size_t parameter, const std::vector<UpdateRule>& rules) const;

  size_t bytes() const;
  size_t master_bytes() const;

 private:
  // Elements of a buffer that are updated in the same way.
  struct Piece {
    size_t buffer;
    size_t slot;  // the first of them
    size_t group;
    int64_t missed;
    int64_t begin;
    int64_t end;
  };

  // Which updates a slot takes part in.
  struct Share {
    bool live = false;
    bool ever = false;
    int64_t missed = 0;  // updates that left it out before it became live
    int64_t left = 0;    // number of updates after which it was no longer live
  };

  std::byte* gradient_of(size_t replica, const Piece& piece) const;
  int64_t find_difference(const Piece& piece) const;
  void scale_gradients(const Piece& piece, double factor) const;
  template <class T>
  void update_piece(const Piece& piece, const UpdateRule& rule, double factor, int64_t updates);

  FlatParameters& flat_;
  HeapArena arena_;
  int num_states_ = 0;
  std::vector<std::array<at::Tensor, kMaxRuleStates>> states_;  // of each buffer
  std::vector<at::Tensor> masters_;                             // of each buffer that has one
  std::vector<Share> shares_;                                   // of each slot
  std::vector<std::vector<Piece>> pieces_;                      // of each chunk
};

}  // namespace tutti::internal
