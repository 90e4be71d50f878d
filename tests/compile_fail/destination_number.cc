// SPDX-License-Identifier: Apache-2.0
//
// A number as a destination, which would be a null pointer to a name.

#include "tutti/strategy/strategy.h"

void wrong(tutti::StrategyExtended& extended, const at::Tensor& tensor) {
  extended.broadcast_to(tensor, 0);
  // EXPECT-FIRST-ERROR: Destinations: a number is not a device
}
