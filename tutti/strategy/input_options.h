// SPDX-License-Identifier: Apache-2.0
//
// How input reaches replicas: the options of Strategy::distribute_dataset and
// Strategy::distribute_datasets_from_function, and what the latter passes to its function.

#pragma once

#include <cstdint>
#include <ostream>

namespace tutti {

enum class InputReplicationMode {
  kPerWorker,   ///< One pipeline per worker, from which its replicas take turns.
  kPerReplica,  ///< One pipeline per replica; only for distribute_datasets_from_function.
};

struct InputOptions {
  /// Whether tensors are moved to the device of their replica, ahead of time.
  bool fetch_to_device = true;

  InputReplicationMode replication_mode = InputReplicationMode::kPerWorker;

  /// Accepted only with kPerReplica and without fetch_to_device: the pipeline itself makes
  /// its tensors on the device of the replica.
  bool place_dataset_on_device = false;

  /// The number of steps to read ahead on a dedicated thread; with 0, steps are read on demand.
  int per_replica_buffer_size = 1;

  /// How to split a batch that does not divide evenly: into pieces that differ by at most one row
  /// (4 over 3 replicas: 2, 1, 1) instead of full ones first (2, 2, 0). Applies where single
  /// batches are split (kData, kBatch); where the stream of rows is split, shares are always even.
  bool even_split = false;
};

/// The argument of the function given to distribute_datasets_from_function. A plain value.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;
  int num_replicas_in_sync = 1;

  /// Throws kInvalidArgument unless the number of replicas divides the size.
  int64_t get_per_replica_batch_size(int64_t global_batch_size) const;
};

/// "InputContext(input pipeline id 0, total: 1)"
std::ostream& operator<<(std::ostream& out, const InputContext& context);

}  // namespace tutti
