// SPDX-License-Identifier: Apache-2.0
//
// Which tensors of a batch are reduced together. Backward produces the last
// layer's gradient first, so packs are formed from the end of the batch.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// The end of the pack that begins at `begin`. A pack is closed once it holds
/// strictly more than `bytes_per_pack`; 0 puts everything into one.
size_t pack_end(std::span<const int64_t> bytes, size_t begin, int64_t bytes_per_pack);

/// All packs of a batch, as positions in it: the last tensor comes first.
std::vector<std::vector<size_t>> group_by_size(std::span<const int64_t> bytes,
                                               int64_t bytes_per_pack);

}  // namespace tutti
