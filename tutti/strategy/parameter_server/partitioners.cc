// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/parameter_server/partitioners.h"

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti {
namespace {

int64_t positive(const char* who, const char* what, int64_t value) {
  if (value > 0) return value;
  throw Error(ErrorCode::kInvalidArgument,
              message(who, ": ", what, " is ", value, "; it must be 1 or more."));
}

int64_t divided_up(int64_t value, int64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

}  // namespace

std::vector<int64_t> Partitioner::operator()(at::IntArrayRef shape, at::ScalarType dtype,
                                             int64_t axis) const {
  const auto rank = static_cast<int64_t>(shape.size());
  if (axis < -rank || axis >= rank) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Partitioner: axis ", axis, " is out of range for the shape ", shape,
                        ", which has ", rank, rank == 1 ? " axis." : " axes."));
  }
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("Partitioner: the shape ", shape,
                          size < 0 ? " is not fully defined: sizes must be 0 or more."
                                   : " has more bytes than 64 bits can count."));
    }
  }
  const auto at = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  std::vector<int64_t> parts(shape.size(), 1);
  const int64_t rows = shape[at];
  if (rows > 1) parts[at] = std::clamp<int64_t>(num_shards({rows, bytes}), 1, rows);
  return parts;
}

FixedShardsPartitioner::FixedShardsPartitioner(int64_t num_shards)
    : num_shards_(positive("FixedShardsPartitioner", "num_shards", num_shards)) {}

int64_t FixedShardsPartitioner::num_shards(const Rows& /*rows*/) const { return num_shards_; }

MinSizePartitioner::MinSizePartitioner(const MinSizePartitionerOptions& options)
    : options_(options) {
  positive("MinSizePartitioner", "min_shard_bytes", options.min_shard_bytes);
  positive("MinSizePartitioner", "max_shards", options.max_shards);
  positive("MinSizePartitioner", "bytes_per_string", options.bytes_per_string);
}

int64_t MinSizePartitioner::num_shards(const Rows& rows) const {
  return std::min(options_.max_shards, divided_up(rows.total_bytes, options_.min_shard_bytes));
}

MaxSizePartitioner::MaxSizePartitioner(int64_t max_shard_bytes,
                                       const MaxSizePartitionerOptions& options)
    : max_shard_bytes_(positive("MaxSizePartitioner", "max_shard_bytes", max_shard_bytes)),
      options_(options) {
  if (options.max_shards) positive("MaxSizePartitioner", "max_shards", *options.max_shards);
  positive("MaxSizePartitioner", "bytes_per_string", options.bytes_per_string);
}

int64_t MaxSizePartitioner::num_shards(const Rows& rows) const {
  const int64_t row_bytes = rows.total_bytes / rows.count;
  if (row_bytes == 0) return 1;
  const int64_t rows_per_shard = std::max<int64_t>(1, max_shard_bytes_ / row_bytes);
  const int64_t shards = divided_up(rows.count, rows_per_shard);
  return options_.max_shards ? std::min(shards, *options_.max_shards) : shards;
}

}  // namespace tutti
