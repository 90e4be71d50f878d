// SPDX-License-Identifier: Apache-2.0
//
// Sums over the ranks of a group as strategies do, for benchmarks.

#pragma once

#include <cstdint>
#include <utility>

#include "tutti/collectives/worker_all_reduce.h"
#include "tutti/group/worker_group.h"

namespace bench {

/// Sums in place.
inline void sum_over_group(tutti::WorkerGroup& group, const tutti::WorkerTree& tree, float* data,
                           int64_t count) {
  tutti::Lane& lane = group.lane(tutti::LaneKind::kGradients);
  tutti::WorkerReduction reduction;
  reduction.count = count;
  reduction.nodes.push_back(data);
  reduction.outputs.push_back(data);
  tutti::Operation operation;
  operation.name = "gradients";
  operation.sizes = c10::IntArrayRef(&count, 1);
  tutti::start_all_reduce(lane, tree, std::move(reduction), operation, lane.deadline())->wait();
}

}  // namespace bench
