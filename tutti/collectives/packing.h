// SPDX-License-Identifier: Apache-2.0
//
// Which tensors of a batch are reduced together. By size: backward produces the
// last layer's gradient first, so packs are formed from the end of the batch. By
// number: the elements of all tensors are cut into equal packs, in order.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// Returns the end of the pack that begins at `begin`. A pack is closed once it holds
/// strictly more than `bytes_per_pack`; 0 puts everything into one.
size_t pack_end(std::span<const int64_t> bytes, size_t begin, int64_t bytes_per_pack);

/// Returns all packs of a batch, as positions in it: the last tensor comes first.
std::vector<std::vector<size_t>> group_by_size(std::span<const int64_t> bytes,
                                               int64_t bytes_per_pack);

/// Elements [begin, end) of one tensor, counted as if it were flat. A plain value.
struct PackPart {
  size_t tensor;
  int64_t begin;
  int64_t end;

  int64_t numel() const { return end - begin; }
  bool operator==(const PackPart&) const = default;
};

/// Concatenates flat tensors of these sizes in order and cuts the result into
/// `num_packs` packs of total / num_packs elements, rounded down; the last one also
/// takes the remainder. 0 makes one pack of each tensor.
///
/// Every element is in exactly one part. Packs and parts without elements are left
/// out, so there may be fewer packs than asked for. All tensors must have one dtype:
/// the caller groups them. Throws kInvalidArgument for a negative number.
std::vector<std::vector<PackPart>> concat_and_split(std::span<const int64_t> numels, int num_packs);

}  // namespace tutti
