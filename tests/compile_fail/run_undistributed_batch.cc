// SPDX-License-Identifier: Apache-2.0
//
// An element of a dataset that was not distributed: a plain tuple is not spread out.

#include <tuple>

#include <ATen/core/Tensor.h>

#include "tutti/strategy/strategy.h"

void wrong(const tutti::Strategy& strategy, const std::tuple<at::Tensor, at::Tensor>& batch) {
  strategy.run([](const at::Tensor&, const at::Tensor&) {}, batch);
  // EXPECT-ERROR: Strategy::run: fn cannot be called with one replica's share of these arguments
  // EXPECT-ERROR: the elements of a dataset that is not distributed, arrive whole
  // EXPECT-ERROR: give those of distribute_dataset()
}
