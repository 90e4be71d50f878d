// SPDX-License-Identifier: Apache-2.0
//
// Checks that a call is allowed in its context.

#pragma once

#include <string>

namespace tutti {

class StrategyServices;
class StrategyExtended;

namespace internal {

/// The strategy of this thread's innermost context, or null if there is none.
StrategyExtended* current_strategy();

/// Throws kFailedPrecondition when the calling thread works for a replica, or for
/// another strategy. `function` is a member of Strategy; `instead` is the call
/// to make on the replica's context.
void check_cross_replica(const StrategyExtended& strategy, const char* function,
                         const char* instead);

/// ", not to MirroredStrategy(CPU:0)", for objects of another strategy; the text distinguishes two
/// strategies with the same description.
std::string not_to(const StrategyExtended& strategy, const StrategyServices& owner);

/// Throws kFailedPrecondition inside a merge function: the strategy is in run().
void check_no_replica_waits(const StrategyExtended& strategy);

}  // namespace internal
}  // namespace tutti
