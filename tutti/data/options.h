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
  kOff = -1,   ///< Every worker sees everything.
  kAuto = 0,   ///< kFile if the pipeline reads enough files, else kData.
  kFile = 1,   ///< Every worker reads other files; an error if there are some, but too few.
  kData = 2,   ///< Every worker walks everything and keeps its share.
  kHint = 3,   ///< Where shard(kShardHint, ...) stands.
  kBatch = 4,  ///< Replica g gets the g-th piece of each global batch.
};

/// For shard(): "as many shards as there are workers", filled in by distribution.
inline constexpr int64_t kShardHint = -1;

struct DatasetOptions {
  std::optional<AutoShardPolicy> auto_shard_policy = std::nullopt;
};

struct ShuffleOptions {
  /// Of the order; not set: drawn once when the dataset is made.
  std::optional<uint64_t> seed = std::nullopt;

  /// Whether every pass has another order.
  bool reshuffle_each_iteration = true;

  /// A position stores the elements in the buffer up to this size; beyond it, the pass
  /// is replayed from its beginning. Indices are always stored, and so are elements that
  /// come from an unordered map().
  int64_t max_saved_bytes = 64 << 20;
};

struct BatchOptions {
  /// Whether a last batch that is not full is left out.
  bool drop_remainder = false;
};

struct PaddedBatchOptions {
  /// A shape for each leaf, or none at all. -1 stands for the largest size in the batch, and
  /// so does a shape that is not given. Numbers and strings have the shape {}.
  std::vector<std::vector<int64_t>> padded_shapes = {};

  /// What is put behind the elements: a value for each leaf, one for all, or none for 0.
  std::vector<c10::Scalar> padding_values = {};

  /// Whether a last batch that is not full is left out.
  bool drop_remainder = false;
};

/// num_parallel_calls: as many as there are usable cores.
inline constexpr int kAutoParallel = -1;

struct MapOptions {
  /// Threads that call the function; 0 calls it on the consumer's thread.
  int num_parallel_calls = 0;

  /// Whether results come in the order of their elements. Only with threads. Where several
  /// workers must see the same order (kData, kBatch, before shard hints), they always do.
  bool ordered = true;
};

struct InterleaveOptions {
  /// How many datasets are open at once. A number, because the order depends on it.
  int64_t cycle_length = 16;

  /// How many elements are taken from one before the next has its turn.
  int64_t block_length = 1;

  /// Threads that open the datasets and read them ahead; 0 uses the consumer's thread.
  int num_parallel_calls = 0;

  /// Whether the elements come in the order that they have without threads.
  bool ordered = true;
};

struct SampleOptions {
  /// Of the choice, which is another one in every pass; not set: drawn once when the dataset
  /// is made.
  std::optional<uint64_t> seed = std::nullopt;

  /// Whether everything ends when a dataset is chosen that has ended.
  bool stop_on_empty_dataset = false;
};

}  // namespace tutti::data
