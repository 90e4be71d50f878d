// SPDX-License-Identifier: Apache-2.0
//
// The examples of sharding in the TensorFlow documents that this library follows. "GPU:i" is
// "CPU:i" here.

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/data/dataset.h"
#include "tutti/data/options.h"
#include "tutti/nest/print.h"
#include "tutti/strategy/mirrored_strategy.h"

namespace tutti::api_examples_input_test {

TEST(ApiExamples, SetsTheAutoShardPolicyByOptions) {
  auto dataset = data::range(16).batch(4);
  data::DatasetOptions options;
  options.auto_shard_policy = data::AutoShardPolicy::kData;
  dataset = dataset.with_options(options);

  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  std::vector<std::string> steps;
  for (const auto& step : strategy.distribute_dataset(dataset)) {
    std::ostringstream out;
    out << step;
    steps.push_back(out.str());
  }
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_EQ(steps[0],
            "PerReplica:{\n"
            "  0: Tensor([0 1], shape=(2,), dtype=int64),\n"
            "  1: Tensor([2 3], shape=(2,), dtype=int64)\n"
            "}");
  EXPECT_EQ(steps[1],
            "PerReplica:{\n"
            "  0: Tensor([4 5], shape=(2,), dtype=int64),\n"
            "  1: Tensor([6 7], shape=(2,), dtype=int64)\n"
            "}");
}

}  // namespace tutti::api_examples_input_test
