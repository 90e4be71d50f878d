// SPDX-License-Identifier: Apache-2.0
//
// The strategy that is current where no other one is: one replica, on the calling thread. Code
// written for replicas runs unchanged in a plain program.

#pragma once

#include <memory>

#include "tutti/strategy/strategy_extended.h"

namespace tutti {

/// There is one per process; get_strategy() returns it.
const std::shared_ptr<StrategyExtended>& default_strategy_extended();

}  // namespace tutti
