// SPDX-License-Identifier: Apache-2.0
//
// How input reaches replicas: what Strategy::distribute_dataset and
// Strategy::distribute_datasets_from_function are told, and what they tell.

#pragma once

#include <cstdint>
#include <ostream>

namespace tutti {

enum class InputReplicationMode {
  kPerWorker,   ///< One pipeline per worker, from which its replicas take turns.
  kPerReplica,  ///< One pipeline per replica; with distribute_datasets_from_function only.
};

struct InputOptions {
  /// Whether tensors are moved to the device of their replica, ahead of time.
  bool fetch_to_device = true;

  InputReplicationMode replication_mode = InputReplicationMode::kPerWorker;

  /// Accepted only with kPerReplica and without fetch_to_device: the pipeline itself makes
  /// its tensors on the device of the replica.
  bool place_dataset_on_device = false;

  /// Steps that are read ahead, on a thread; 0: none, each is read when it is asked for.
  int per_replica_buffer_size = 1;

  /// Where a batch does not divide evenly: pieces that differ by one row at most (4 over 3
  /// replicas: 2, 1, 1) instead of full ones first (2, 2, 0). Concerns the pieces of single
  /// batches (kData, kBatch); where the stream of rows is cut, shares are always even.
  bool even_split = false;
};

/// What the function of distribute_datasets_from_function is told.
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
