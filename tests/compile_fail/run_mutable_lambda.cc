// SPDX-License-Identifier: Apache-2.0
//
// A lambda that changes its captures, while all replicas share it.

#include "tutti/strategy/strategy.h"

void wrong(const tutti::Strategy& strategy) {
  strategy.run([n = 0]() mutable { return ++n; });
  // EXPECT-ERROR: Strategy::run: fn cannot be called with one replica's share of these arguments
  // EXPECT-ERROR: a `mutable` lambda is not accepted, because all replicas share it
}
