// SPDX-License-Identifier: Apache-2.0
//
// An update function that all copies would share and change.

#include "tutti/strategy/strategy.h"

void wrong(tutti::StrategyExtended& extended, const tutti::Variable& variable) {
  int calls = 0;
  extended.update(variable, [calls](const tutti::Variable&) mutable { ++calls; });
  // EXPECT-FIRST-ERROR: StrategyExtended::update: fn cannot be called with the variable
}
