// SPDX-License-Identifier: Apache-2.0
//
// A merge function that takes this replica's value instead of those of all replicas.

#include "tutti/strategy/strategy.h"

void wrong(tutti::ReplicaContext& context) {
  context.merge_call([](const tutti::Strategy&, int value) { return value; }, 1);
  // EXPECT-ERROR: ReplicaContext::merge_call: fn cannot be called with (Strategy, PerReplica<A>...)
  // EXPECT-ERROR: one PerReplica for each further argument of merge_call
}
