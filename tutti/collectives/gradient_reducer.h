// SPDX-License-Identifier: Apache-2.0
//
// Sums the gradients of all replicas, bucket by bucket. Hooks say which buckets a replica has
// filled, so that a reducer may begin while backward still runs. An optimizer owns one;
// CrossDeviceOps::make_gradient_reducer() makes it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/function_ref.h"

namespace tutti {

/// Elements that are reduced together: a flat tensor of each local replica, in its arena.
struct GradientBucket {
  std::vector<at::Tensor> memory;
  std::string name = {};  ///< For people: of its first parameter.

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

/// A step: every replica calls ready() once for every bucket, in any order, and help() as it
/// likes; then all call finish() in a meeting. The next step begins when finish() has returned
/// on all of them. Replica r calls with its local id, from one thread at a time.
class GradientReducer {
 public:
  using ChunkFn = FunctionRef<void(const GradientChunk&)>;

  explicit GradientReducer(std::vector<GradientBucket> buckets);
  virtual ~GradientReducer() = default;
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  const std::vector<GradientBucket>& buckets() const { return buckets_; }
  const std::vector<GradientChunk>& chunks() const { return chunks_; }

  /// The replica has filled the bucket. Or its elements lie at `place` in this step, one after the
  /// other, and the sum is written there; only with sums_in_place(). Never waits.
  virtual void ready(size_t replica, size_t bucket, void* place = nullptr) = 0;

  /// Whether ready() takes a place.
  virtual bool sums_in_place() const { return false; }

  /// May reduce what all replicas have filled, or move on what is under way. Never waits.
  virtual void help(size_t replica) = 0;

  /// Reduces what is left and hands every chunk to `reduced` once, on one of the replicas;
  /// true. Or false: all chunks are reduced when all calls have returned, and none was handed out.
  [[nodiscard]] virtual bool finish(size_t replica, ChunkFn reduced) = 0;

  /// Flags that travel with a step: a replica sets some before finish(), as std::atomic_ref; after
  /// it those are set that a replica of any worker has set. Whoever reads them sets them to zero
  /// for the next step. Empty if there are no other workers.
  virtual std::span<uint8_t> flags() { return {}; }

  /// How many there are; 0 at first. Not during a step.
  virtual void set_num_flags(size_t count) { (void)count; }

  /// Numbers that all workers must have alike, bit by bit: set by replica 0 before finish().
  virtual void set_statement(std::span<const double> numbers) { (void)numbers; }

  /// After finish(): two workers whose statements differ, and the first number that does; or how
  /// many numbers each has, if only that differs.
  struct Disagreement {
    std::array<std::string, 2> workers;
    size_t number = 0;
    std::array<double, 2> values = {};
    bool is_count = false;
  };
  virtual std::optional<Disagreement> disagreement() const { return std::nullopt; }

  /// Bytes that travel beside the gradients of the next finish(), and those of each worker after
  /// it. By replica 0. Null, and empty, if nothing can travel there.
  virtual std::vector<std::byte>* attachment() { return nullptr; }
  virtual std::vector<std::span<const std::byte>> attachments() const { return {}; }

  /// Forgets a step that was not finished. No other call may be in progress.
  virtual void reset() = 0;

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
