// SPDX-License-Identifier: Apache-2.0
//
// Into how many parts a variable is divided along an axis:
//
//   FixedShardsPartitioner(2)({10, 3}, at::kFloat);                                      // {2, 1}
//   MinSizePartitioner({.min_shard_bytes = 24, .max_shards = 4})({10, 3}, at::kFloat);   // {4, 1}

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace tutti {

/// Divides a shape. Immutable; override num_shards() for a rule of your own.
class Partitioner {
 public:
  virtual ~Partitioner() = default;

  /// The number of parts of each axis: at least 1 for `axis`, and 1 for all others. A negative axis
  /// counts from the end. Throws kInvalidArgument for an axis that the shape does not have and for
  /// a shape with negative sizes.
  std::vector<int64_t> operator()(at::IntArrayRef shape, at::ScalarType dtype,
                                  int64_t axis = 0) const;

 protected:
  Partitioner() = default;
  Partitioner(const Partitioner&) = default;
  Partitioner& operator=(const Partitioner&) = default;

  /// The tensor to divide: at least one row along the axis, and its size in bytes.
  struct Rows {
    int64_t count;
    int64_t total_bytes;
  };

 private:
  /// The number of parts; the caller keeps it within 1 and the number of rows.
  virtual int64_t num_shards(const Rows& rows) const = 0;
};

/// A fixed number of parts, or one per row if there are fewer rows.
class FixedShardsPartitioner final : public Partitioner {
 public:
  /// Throws kInvalidArgument unless the number is positive.
  explicit FixedShardsPartitioner(int64_t num_shards);

 private:
  int64_t num_shards(const Rows& rows) const override;

  int64_t num_shards_;
};

struct MinSizePartitionerOptions {
  int64_t min_shard_bytes = 256 << 10;
  int64_t max_shards = 1;

  /// Accepted for programs that set it; tensors do not hold strings.
  int64_t bytes_per_string = 16;
};

/// As many parts as there are pieces of min_shard_bytes, the last begun one included, so that parts
/// may be smaller; at most max_shards.
class MinSizePartitioner final : public Partitioner {
 public:
  /// Throws kInvalidArgument unless all options are positive.
  explicit MinSizePartitioner(const MinSizePartitionerOptions& options = {});

 private:
  int64_t num_shards(const Rows& rows) const override;

  MinSizePartitionerOptions options_;
};

struct MaxSizePartitionerOptions {
  std::optional<int64_t> max_shards = std::nullopt;

  /// Accepted for programs that set it; tensors do not hold strings.
  int64_t bytes_per_string = 16;
};

/// As few parts as hold at most max_shard_bytes each, or one row; at most max_shards, which wins.
class MaxSizePartitioner final : public Partitioner {
 public:
  /// Throws kInvalidArgument unless all arguments are positive.
  explicit MaxSizePartitioner(int64_t max_shard_bytes,
                              const MaxSizePartitionerOptions& options = {});

 private:
  int64_t num_shards(const Rows& rows) const override;

  int64_t max_shard_bytes_;
  MaxSizePartitionerOptions options_;
};

}  // namespace tutti
