// SPDX-License-Identifier: Apache-2.0
//
// Where variables made on a thread are placed, if specified.

#pragma once

#include <utility>
#include <vector>

#include "tutti/device/device_spec.h"
#include "tutti/device/thread_context.h"

namespace tutti {

class StrategyExtended;

namespace internal {

/// Made by StrategyExtended::colocate_vars_with. Scopes nest; the innermost one applies. An object
/// belongs to the thread that makes it.
class ColocationScope {
 public:
  ColocationScope(const StrategyExtended& strategy, std::vector<DeviceSpec> devices)
      : strategy_(&strategy), devices_(std::move(devices)), slot_(this) {}
  void* operator new(unsigned long) = delete;

  /// The devices for a new variable of the strategy, or null.
  static const std::vector<DeviceSpec>* devices_for(const StrategyExtended& strategy);

 private:
  const StrategyExtended* strategy_;
  std::vector<DeviceSpec> devices_;
  const SlotScope<&ThreadContext::colocation> slot_;
};

}  // namespace internal
}  // namespace tutti
