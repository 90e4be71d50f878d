// SPDX-License-Identifier: Apache-2.0
//
// Reductions of leaves that are not tensors.

#pragma once

#include <vector>

#include "tutti/nest/leaf.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/reduce_op.h"

namespace tutti {

class StrategyExtended;

namespace internal {

/// Reduces C++ numbers, one per local replica, over all replicas by the canonical tree into
/// `result`.
void reduce_scalars(StrategyExtended& strategy, ReduceOp op, const std::vector<Leaf>& column,
                    const Leaf& result, const CommunicationOptions& options);

}  // namespace internal
}  // namespace tutti
