// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// Gradients, parameters and state of one chunk fit into the cache of a core.
constexpr int64_t kChunkElements = 16 << 10;

}  // namespace

GradientReducer::GradientReducer(std::vector<GradientBucket> buckets)
    : buckets_(std::move(buckets)), first_chunk_{0} {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    TUTTI_CHECK(!buckets_[b].memory.empty());
    const int64_t numel = buckets_[b].numel();
    for (int64_t begin = 0; begin < numel; begin += kChunkElements) {
      chunks_.push_back({chunks_.size(), b, begin, std::min(numel, begin + kChunkElements)});
    }
    first_chunk_.push_back(chunks_.size());
  }
}

}  // namespace tutti
