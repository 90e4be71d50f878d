// SPDX-License-Identifier: Apache-2.0
//
// Strategy::reduce and Strategy::gather on lists of leaves; the templates of
// strategy.h list them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <c10/util/OptionalArrayRef.h>

#include "tutti/nest/leaf.h"
#include "tutti/values/reduce_op.h"

namespace tutti {

class StrategyExtended;

namespace internal {

using ReduceLeaves = std::vector<LeafList>;  // one list per local replica

// Reduces or gathers into `result`, a copy of the first component.
void reduce_per_replica(const StrategyExtended& strategy, ReduceOp op, const ReduceLeaves& leaves,
                        const std::vector<std::string>& structures, const LeafList& result,
                        at::OptionalIntArrayRef axis);
void gather_per_replica(const StrategyExtended& strategy, const ReduceLeaves& leaves,
                        const std::vector<std::string>& structures, const LeafList& result,
                        int64_t axis);
void reduce_plain(const StrategyExtended& strategy, ReduceOp op, const LeafList& result,
                  at::OptionalIntArrayRef axis);
void gather_plain(const StrategyExtended& strategy, const LeafList& leaves);
void check_components(const StrategyExtended& strategy, const char* function, size_t components);
void check_cross_for_values(const StrategyExtended& strategy);

}  // namespace internal
}  // namespace tutti
