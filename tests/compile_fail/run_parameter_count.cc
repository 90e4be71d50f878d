// SPDX-License-Identifier: Apache-2.0
//
// A step function with a parameter that nobody fills.

#include "tutti/strategy/strategy.h"

void wrong(const tutti::Strategy& strategy, const tutti::PerReplica<int>& batch) {
  strategy.run([](int, int) {}, batch);
  // EXPECT-ERROR: Strategy::run: fn cannot be called with one replica's share of these arguments
  // EXPECT-ERROR: a per-replica tuple may arrive whole or spread out
}
