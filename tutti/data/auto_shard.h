// SPDX-License-Identifier: Apache-2.0
//
// Decides which part of a pipeline one worker reads and how its batches are cut for replicas, by
// rewriting the pipeline. distribute_dataset calls it; all it knows of a job is the number of
// workers and replicas.

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
  bool even_split = false;  ///< Pieces differ by one row at most.
};

struct ShardedPipeline {
  NodePtr node;
  std::optional<PieceOptions> pieces;  ///< If set, each step is cut from one batch of the node.
  AutoShardPolicy policy;              ///< The policy applied; never kAuto.
  std::string explanation;             ///< What this worker reads, and why, for the log.
  bool is_warning = false;

  /// The rows of each local replica, if they are the same in every step.
  std::optional<std::vector<int64_t>> rows = std::nullopt;

  /// The original pipeline without shuffles, which shows a worker without elements of its own what
  /// an element looks like.
  NodePtr sample = nullptr;

  std::unique_ptr<StepStream> iterate(Iteration& iteration, int replicas) const;

  /// The number of steps, kInfinite or kUnknown.
  int64_t cardinality(int replicas) const;
};

/// Rewrites a pipeline of global batches for one worker. Throws kInvalidArgument when the pipeline
/// does not fit the requested policy.
///
/// Batches are recut unless there is only one replica in total:
///   kFile, kOff, kHint   the stream of rows is cut into G/N rows per replica, the first
///                        replicas one more (element-wise), if the batch size G is known;
///   kData, kBatch        each batch is cut into N pieces (per batch).
/// Under kData the workers take the pieces in turn; under kBatch global replica g gets the g-th
/// piece.
ShardedPipeline shard_pipeline(const NodePtr& node, const ShardRequest& request);

/// The number of rows of a full batch, if the pipeline tells.
std::optional<int64_t> global_batch_size(const Node& node);

/// The elements of one worker, whole: those of its files (kFile) or, if the elements are not read
/// file by file or there are fewer files than workers, every num_workers-th.
NodePtr shard_elements(const NodePtr& node, int64_t num_workers, int64_t worker);

/// A seed for datasets without one, different at every call.
uint64_t propose_seed();

}  // namespace tutti::data
