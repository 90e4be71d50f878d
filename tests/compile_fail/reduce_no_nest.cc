// SPDX-License-Identifier: Apache-2.0
//
// Values that have no leaves: a pointer, and a struct with a C array.

#include "tutti/strategy/strategy.h"

struct WithArray {
  at::Tensor loss;
  float parts[2];
};

void wrong(const tutti::Strategy& strategy, const tutti::PerReplica<int*>& pointers,
           const tutti::PerReplica<WithArray>& arrays) {
  strategy.reduce(tutti::ReduceOp::kSum, pointers);
  strategy.reduce(tutti::ReduceOp::kSum, arrays);
  // EXPECT-ERROR: Strategy::reduce: the value is not a nest (tensor, IndexedSlices, arithmetic type
  // EXPECT-ERROR: a struct has 1-16 fields and no base class, C array, bit-field, const or
  // EXPECT-ERROR: reference field
  // EXPECT-ERROR: with V = tutti::PerReplica<int*>
  // EXPECT-ERROR: with V = tutti::PerReplica<WithArray>
}
