// SPDX-License-Identifier: Apache-2.0
//
// A program for the present names: including the old ones warns of nothing.

#include "tutti/compat/contrib.h"
#include "tutti/compat/v1/step.h"
#include "tutti/strategy/mirrored_strategy.h"

void program(const tutti::data::Dataset<at::Tensor>& dataset) {
  tutti::v1::Strategy strategy = tutti::MirroredStrategy();
  for (auto& x : strategy.distribute_dataset(dataset)) {
    auto sums = strategy.run([](const at::Tensor& rows) { return rows.sum(); }, x);
    auto results = strategy.local_results(sums);
  }
  auto more = strategy.extended().call_for_each_replica([] { return 1; });
}
