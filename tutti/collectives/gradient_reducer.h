// SPDX-License-Identifier: Apache-2.0
//
// Sums the gradients of all replicas, bucket by bucket. Hooks say which buckets a replica has
// filled, so that a reducer may begin while backward still runs. An optimizer owns one;
// CrossDeviceOps::make_gradient_reducer() makes it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/function_ref.h"

namespace tutti {

/// Elements that are reduced together: a flat tensor of each local replica, in its arena. A plain
/// value.
struct GradientBucket {
  std::vector<at::Tensor> memory;
  std::string name = {};  ///< Its first parameter's name, for diagnostics.

  at::ScalarType dtype() const { return memory.front().scalar_type(); }
  int64_t numel() const { return memory.front().numel(); }
};

/// Elements [begin, end) of a bucket: the unit of work.
struct GradientChunk {
  size_t index;  ///< Among all chunks of the reducer.
  size_t bucket;
  int64_t begin;
  int64_t end;
};

/// In a step every replica calls ready() once for every bucket, in any order, and help() any
/// number of times; then all call finish() in a meeting. The next step begins when finish() has
/// returned on all of them. Replica r calls with its local id, from one thread at a time.
class GradientReducer {
 public:
  using ChunkFn = FunctionRef<void(const GradientChunk&)>;

  explicit GradientReducer(std::vector<GradientBucket> buckets);
  virtual ~GradientReducer() = default;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  const std::vector<GradientBucket>& buckets() const { return buckets_; }
  const std::vector<GradientChunk>& chunks() const { return chunks_; }

  /// Says that the replica has filled the bucket. With sums_in_place(), the elements may instead
  /// lie contiguously at `place` in this step, and the sum is written there. Never waits.
  virtual void ready(size_t replica, size_t bucket, void* place = nullptr) = 0;

  /// Whether ready() accepts a place.
  virtual bool sums_in_place() const { return false; }

  /// May reduce what all replicas have filled, or advance what is under way. Never waits.
  virtual void help(size_t replica) = 0;

  /// Reduces what is left. Returns true if it handed every chunk to `reduced` once, on one of the
  /// replicas; false if it handed out none, and all are reduced once all calls have returned.
  [[nodiscard]] virtual bool finish(size_t replica, ChunkFn reduced) = 0;

  /// Drops a step that was not finished. No other call may be in progress. Returns whether other
  /// workers have summed, or will sum, gradients of it: they must be told that this one drops them.
  virtual bool reset() = 0;

 protected:
  /// The chunks of a bucket are consecutive.
  size_t first_chunk(size_t bucket) const { return first_chunk_[bucket]; }
  size_t num_chunks(size_t bucket) const { return first_chunk_[bucket + 1] - first_chunk_[bucket]; }

 private:
  std::vector<GradientBucket> buckets_;
  std::vector<GradientChunk> chunks_;
  std::vector<size_t> first_chunk_;
};

}  // namespace tutti
