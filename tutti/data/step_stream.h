// SPDX-License-Identifier: Apache-2.0
//
// What one worker reads of a pipeline, step by step: an element for each of its replicas.
// shard_pipeline() in auto_shard.h decides how batches are cut; here they are.

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
  /// One for each local replica, from the first on; nullopt: no rows for this replica.
  /// Those at the end may be missing.
  std::vector<std::optional<Element>> elements = {};

  /// How many local replicas the pipeline had an element for, be it without rows.
  int with_data = 0;

  /// What the elements were cut from, if positions need it.
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

  /// The position before the steps `ahead`, which next() gave out last and nobody used yet.
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

/// Each replica has a pipeline and a pass of its own.
std::unique_ptr<StepStream> parallel_steps(
    const std::vector<NodePtr>& nodes, const std::vector<std::unique_ptr<Iteration>>& iterations);

}  // namespace tutti::data
