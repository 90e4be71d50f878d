// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/packing.h"

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

}  // namespace tutti
