// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/parameter_layout.h"

#include <algorithm>

namespace tutti {
namespace {

constexpr int64_t kLargeElements = 16 << 10;

bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// 64 bytes, whatever the dtype of gradient and state.
constexpr int64_t kAlignment = 32;

int64_t aligned(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

size_t find_buffer(ParameterLayout& layout, at::ScalarType dtype,
                   std::optional<at::ScalarType> communication) {
  for (size_t i = 0; i < layout.buffers.size(); ++i) {
    if (layout.buffers[i].dtype == dtype) return i;
  }
  layout.buffers.push_back({.dtype = dtype,
                            .gradient = communication.value_or(dtype),
                            .state = is_16_bit(dtype) ? at::kFloat : dtype,
                            .numel = 0});
  return layout.buffers.size() - 1;
}

}  // namespace

bool ParameterLayout::is_large(size_t bucket) const {
  const ParameterBucket& b = buckets[bucket];
  return b.end_slot - b.first_slot == 1 && slots[b.first_slot].info.numel >= kLargeElements;
}

ParameterLayout make_parameter_layout(std::span<const ParameterInfo> parameters,
                                      int64_t bytes_per_bucket,
                                      std::optional<at::ScalarType> communication) {
  ParameterLayout layout;
  for (auto info = parameters.rbegin(); info != parameters.rend(); ++info) {
    const size_t buffer = find_buffer(layout, info->dtype, communication);
    layout.slots.push_back({.info = *info, .buffer = buffer});
  }
  // The slots of a bucket are consecutive, and so are those of a buffer.
  std::stable_sort(
      layout.slots.begin(), layout.slots.end(),
      [](const ParameterSlot& a, const ParameterSlot& b) { return a.buffer < b.buffer; });
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    ParameterSlot& slot = layout.slots[i];
    ParameterBuffer& buffer = layout.buffers[slot.buffer];
    const auto element = static_cast<int64_t>(c10::elementSize(buffer.gradient));
    bool open = false;
    if (!layout.buckets.empty() && layout.buckets.back().buffer == slot.buffer) {
      const ParameterBucket& last = layout.buckets.back();
      open = (last.end - last.begin) * element < bytes_per_bucket &&
             slot.info.numel < kLargeElements && !layout.is_large(layout.buckets.size() - 1);
    }
    if (!open) {
      layout.buckets.push_back({.buffer = slot.buffer,
                                .first_slot = i,
                                .end_slot = i,
                                .begin = buffer.numel,
                                .end = buffer.numel});
    }
    slot.offset = buffer.numel;
    slot.bucket = layout.buckets.size() - 1;
    buffer.numel += aligned(slot.info.numel);
    layout.buckets.back().end_slot = i + 1;
    layout.buckets.back().end = buffer.numel;
  }
  return layout;
}

}  // namespace tutti
