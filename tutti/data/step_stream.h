// SPDX-License-Identifier: Apache-2.0
//
// What one worker reads from a pipeline, step by step: an element for each of its replicas.
// shard_pipeline() in auto_shard.h decides how batches are cut; these streams cut them.

#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/data/node.h"
#include "tutti/nest/element_codec.h"

namespace tutti::data {

/// The part of one worker in a step.
struct Step {
  /// One for each local replica, in order; nullopt if the replica has no rows. Trailing ones may be
  /// missing.
  std::vector<std::optional<Element>> elements = {};

  /// For how many local replicas the pipeline had an element, even one without rows.
  int with_data = 0;

  /// The batch that the elements were cut from, if positions need it.
  std::optional<Element> whole = std::nullopt;

  /// Whether positions need the elements themselves.
  bool keeps_elements = false;
};

/// Used by one thread at a time.
class StepStream {
 public:
  StepStream() = default;
  virtual ~StepStream() = default;
  StepStream(const StepStream&) = delete;
  StepStream& operator=(const StepStream&) = delete;

  /// False at the end, and from then on.
  virtual bool next(Step& out) = 0;

  /// Saves the position before the steps `ahead`, which next() returned last and which are still
  /// unused.
  virtual void save(StateWriter& state, const std::deque<Step>& ahead) = 0;
  virtual void restore(StateReader& state) = 0;
};

/// Which pieces of each batch a worker keeps: first, first + stride, ...
struct PieceOptions {
  int64_t pieces = 1;
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 1;
  bool even = false;
};

/// Each step is the next `replicas` elements.
std::unique_ptr<StepStream> grouped_steps(const Node& node, Iteration& iteration, int replicas);

/// Each step is cut from one batch. Positions do not depend on the options, so that they
/// can be restored under others. If the rows come from a random-access source, those of
/// other workers are neither read nor mapped.
std::unique_ptr<StepStream> piece_steps(const Node& node, Iteration& iteration,
                                        const PieceOptions& options);

/// Each replica has its own pipeline and pass.
std::unique_ptr<StepStream> parallel_steps(
    const std::vector<NodePtr>& nodes, const std::vector<std::unique_ptr<Iteration>>& iterations);

}  // namespace tutti::data
