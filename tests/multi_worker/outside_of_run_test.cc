// SPDX-License-Identifier: Apache-2.0
//
// What every worker does once, outside of run(), to values that have a copy on every replica of
// every worker: it counts once in all, not once for each worker.

#include <vector>

#include <gtest/gtest.h>

#include "tests/multi_worker/shapes.h"

namespace tutti::outside_of_run_test {

class OutsideOfRun : public testing::MultiWorker {};

INSTANTIATE_TEST_SUITE_P(Shapes, OutsideOfRun, testing::shapes(), testing::shape_name);

TEST_P(OutsideOfRun, AnAssignedSumIsDividedAmongTheCopiesOfAllWorkers) {
  run([&](const Strategy& strategy) {
    const Variable sum = strategy.scope([] {
      return Variable([] { return at::zeros({2}, at::kDouble); },
                      {.name = "sum",
                       .synchronization = VariableSynchronization::kOnRead,
                       .aggregation = VariableAggregation::kSum});
    });
    const at::Tensor whole = at::full({2}, 12.0, at::kDouble);
    sum.assign(whole);
    EXPECT_TRUE(at::equal(sum.value(), whole)) << sum.value();
    const auto copies = strategy.run([&] { return sum.read_value(); });
    for (const at::Tensor& copy : strategy.local_results(copies)) {
      EXPECT_TRUE(at::equal(copy, whole / all())) << copy;
    }
  });
}

TEST_P(OutsideOfRun, AMetricCountsAnUpdateOnce) {
  run([&](const Strategy& strategy) {
    const metrics::Sum sum(strategy, "sum");
    const metrics::Mean mean(strategy, "mean");
    sum.update(5.0);
    mean.update(2.0, 1.0);
    strategy.run([&] { mean.update(8.0, 1.0); });
    EXPECT_EQ(sum.result(), 5.0);
    EXPECT_DOUBLE_EQ(mean.result(), (2.0 + 8.0 * all()) / (1 + all()));
    sum.reset();
    EXPECT_EQ(sum.result(), 0.0);
  });
}

}  // namespace tutti::outside_of_run_test
