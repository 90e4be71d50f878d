// SPDX-License-Identifier: Apache-2.0
//
// What is current where no strategy is: one replica, on the calling thread. Code
// written for replicas runs unchanged in a plain program.

#pragma once

#include <memory>

#include "tutti/strategy/strategy_extended.h"

namespace tutti {

/// One per process; get_strategy() hands it out.
const std::shared_ptr<StrategyExtended>& default_strategy_extended();

}  // namespace tutti
