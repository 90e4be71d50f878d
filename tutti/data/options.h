// SPDX-License-Identifier: Apache-2.0
//
// Options of pipelines and of their transforms.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <c10/core/Scalar.h>

namespace tutti::data {

/// How a pipeline is split between workers.
enum class AutoShardPolicy {
  kOff = -1,   ///< Every worker reads everything.
  kAuto = 0,   ///< kFile if the pipeline reads enough files, else kData.
  kFile = 1,   ///< Each worker reads different files; having some files, but too few, is an error.
  kData = 2,   ///< Each worker walks all elements and keeps its share.
  kHint = 3,   ///< Shards at shard(kShardHint, ...).
  kBatch = 4,  ///< Replica g gets the g-th piece of each global batch.
};

/// For shard(): as many shards as there are workers, filled in by distribution.
inline constexpr int64_t kShardHint = -1;

struct DatasetOptions {
  std::optional<AutoShardPolicy> auto_shard_policy = std::nullopt;
};

struct ShuffleOptions {
  /// Seed of the order; if not set, drawn once when the dataset is created.
  std::optional<uint64_t> seed = std::nullopt;

  /// Whether every pass has a different order.
  bool reshuffle_each_iteration = true;

  /// A position stores the elements in the buffer up to this size; beyond it, restoring replays the
  /// pass from its beginning. Indices are always stored, and so are elements that come from an
  /// unordered map().
  int64_t max_saved_bytes = 64 << 20;
};

struct BatchOptions {
  /// Whether a last batch that is not full is left out.
  bool drop_remainder = false;
};

struct PaddedBatchOptions {
  /// A shape for each leaf, or empty. -1 means the largest size in the batch, and is the default.
  /// Numbers and strings have the shape {}.
  std::vector<std::vector<int64_t>> padded_shapes = {};

  /// The padding: a value for each leaf, one for all, or empty for 0.
  std::vector<c10::Scalar> padding_values = {};

  /// Whether a last batch that is not full is left out.
  bool drop_remainder = false;
};

/// num_parallel_calls: as many as there are usable cores.
inline constexpr int kAutoParallel = -1;

struct MapOptions {
  /// Threads that call the function; 0 calls it on the consumer's thread.
  int num_parallel_calls = 0;

  /// Whether results keep the order of their elements; matters only with threads. Where several
  /// workers must see the same order (kData, kBatch, before shard hints), they always do.
  bool ordered = true;
};

struct InterleaveOptions {
  /// How many datasets are open at a time. There is no automatic value, because the order depends
  /// on it.
  int64_t cycle_length = 16;

  /// How many elements are taken from a dataset before it is the next one's turn.
  int64_t block_length = 1;

  /// Threads that open the datasets and read them ahead; 0 uses the consumer's thread.
  int num_parallel_calls = 0;

  /// Whether the elements keep the order that they have without threads.
  bool ordered = true;
};

struct SampleOptions {
  /// Seed of the choices, which differ in every pass; if not set, drawn once when the dataset is
  /// created.
  std::optional<uint64_t> seed = std::nullopt;

  /// Whether choosing a dataset that has ended ends everything.
  bool stop_on_empty_dataset = false;
};

}  // namespace tutti::data
