// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/packing.h"

#include <algorithm>
#include <numeric>

#include "tutti/base/error.h"

namespace tutti {

size_t pack_end(std::span<const int64_t> bytes, size_t begin, int64_t bytes_per_pack) {
  if (bytes_per_pack < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("pack_end: bytes_per_pack is ", bytes_per_pack, "; it must be 0 or more."));
  }
  if (bytes_per_pack == 0) return bytes.size();
  int64_t size = 0;
  size_t end = begin;
  while (end < bytes.size() && size <= bytes_per_pack) size += bytes[end++];
  return end;
}

std::vector<std::vector<size_t>> group_by_size(std::span<const int64_t> bytes,
                                               int64_t bytes_per_pack) {
  const std::vector<int64_t> reversed(bytes.rbegin(), bytes.rend());
  std::vector<std::vector<size_t>> packs;
  for (size_t begin = 0; begin < reversed.size();) {
    const size_t end = pack_end(reversed, begin, bytes_per_pack);
    std::vector<size_t>& pack = packs.emplace_back();
    for (size_t i = begin; i < end; ++i) pack.push_back(bytes.size() - 1 - i);
    begin = end;
  }
  return packs;
}

std::vector<std::vector<PackPart>> concat_and_split(std::span<const int64_t> numels,
                                                    int num_packs) {
  if (num_packs < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("concat_and_split: num_packs is ", num_packs, "; it must be 0 or more."));
  }
  std::vector<std::vector<PackPart>> packs;
  if (num_packs == 0) {
    for (size_t t = 0; t < numels.size(); ++t) {
      if (numels[t] > 0) packs.push_back({{t, 0, numels[t]}});
    }
    return packs;
  }
  const int64_t total = std::accumulate(numels.begin(), numels.end(), int64_t{0});
  const int64_t size = total / num_packs;
  // With fewer elements than packs, all elements are the remainder.
  int64_t left = num_packs == 1 || size == 0 ? total : size;  // in the pack that is filled
  int64_t after = total - left;                               // in the packs after it
  if (total > 0) packs.emplace_back();
  for (size_t t = 0; t < numels.size(); ++t) {
    for (int64_t begin = 0; begin < numels[t];) {
      if (left == 0) {
        packs.emplace_back();
        const bool last = packs.size() == static_cast<size_t>(num_packs);
        left = last ? after : size;
        after -= left;
      }
      const int64_t end = std::min(numels[t], begin + left);
      packs.back().push_back({t, begin, end});
      left -= end - begin;
      begin = end;
    }
  }
  return packs;
}

}  // namespace tutti
