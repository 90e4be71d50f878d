// SPDX-License-Identifier: Apache-2.0
//
// Which part of a pipeline one worker reads, and how its batches are cut for replicas:
// a pipeline in, another one out. distribute_dataset calls it; it knows numbers of
// workers and replicas only.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/data/node.h"
#include "tutti/data/options.h"
#include "tutti/data/step_stream.h"

namespace tutti::data {

struct ShardRequest {
  int64_t num_workers = 1;
  int64_t worker = 0;
  int64_t replicas_per_worker = 1;
  bool even_split = false;  ///< Pieces that differ by one row at most.
};

struct ShardedPipeline {
  NodePtr node;
  std::optional<PieceOptions> pieces;  ///< Set: each step is cut from one batch of the node.
  AutoShardPolicy policy;              ///< What was done; never kAuto.
  std::string explanation;             ///< What this worker reads, and why, in words.
  bool is_warning = false;

  /// The rows of each local replica, if they are the same in every step.
  std::optional<std::vector<int64_t>> rows = std::nullopt;

  /// The pipeline as it was, without shuffles: what an element looks like for a worker that has
  /// none of its own.
  NodePtr sample = nullptr;

  std::unique_ptr<StepStream> iterate(Iteration& iteration, int replicas) const;

  /// Of steps; kInfinite or kUnknown if it is no number.
  int64_t cardinality(int replicas) const;
};

/// Rewrites a pipeline of global batches for one worker. Throws kInvalidArgument when the
/// pipeline does not fit the policy that was asked for.
///
/// Batches are cut anew unless there is one replica in all:
///   kFile, kOff, kHint   the stream of rows is cut into G/N rows per replica, the first
///                        replicas one more (element-wise), if the batch size G is known;
///   kData, kBatch        each batch is cut into N pieces (per batch).
/// Under kData the pieces go round the workers; under kBatch replica g of all gets the
/// g-th piece.
ShardedPipeline shard_pipeline(const NodePtr& node, const ShardRequest& request);

/// A seed for those who were given none; another one at every call.
uint64_t propose_seed();

}  // namespace tutti::data
