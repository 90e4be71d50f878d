// SPDX-License-Identifier: Apache-2.0
//
// Every example of the documents on tf.compat.v1.distribute.MirroredStrategy and
// tf.distribute.Strategy, under the old names. "GPU:i" is "CPU:i" here, and the files of the
// examples are written first.

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/compat/tf_v1.h"
#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

#include "tests/compat/document_examples.h"
#include "tests/support/tensors.h"

namespace tutti::compat_test {

using Floats = std::vector<float>;

v1::MirroredStrategy two_replicas() { return v1::MirroredStrategy({"CPU:0", "CPU:1"}); }

TEST(V1Documents, DistributesADatasetOfRecordFiles) {
  const test::TempFolder folder;
  const std::vector<std::string> files = record_files(folder);
  const auto strategy = two_replicas();
  const auto dataset = data::tf_record(files).map(parse).batch(4);
  const auto dist_dataset = strategy.experimental_distribute_dataset(dataset);
  const Variable sum =
      strategy.scope([] { return Variable(0., {.aggregation = VariableAggregation::kSum}); });
  const auto train_step = [&](const at::Tensor& x) { sum.assign_add(x.sum()); };
  int steps = 0;
  for (const auto& x : dist_dataset) {
    strategy.experimental_run_v2(train_step, x);
    ++steps;
  }
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(sum.value().item<double>(), 28);
}

TEST(V1Documents, DistributesDatasetsFromAFunction) {
  const auto strategy = two_replicas();
  const int64_t global_batch_size = 8;
  const auto dataset_fn = [&](const InputContext& input_context) {
    const int64_t batch_size = input_context.get_per_replica_batch_size(global_batch_size);
    const auto d = data::from_tensors(at::tensor({1.F})).repeat().batch(batch_size);
    return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id);
  };
  const auto inputs = strategy.experimental_distribute_datasets_from_function(dataset_fn);
  const auto replica_fn = [](const at::Tensor& batch) { return batch.sum(); };
  int steps = 0;
  for (const auto& batch : inputs) {
    const auto replica_results = strategy.experimental_run_v2(replica_fn, batch);
    EXPECT_EQ(replica_results[0].item<float>(), 4);
    EXPECT_EQ(replica_results[1].item<float>(), 4);
    if (++steps == 3) break;
  }
}

TEST(V1Documents, MakesADatasetOfArrays) {
  const auto strategy = two_replicas();
  const at::Tensor numpy_input = at::ones({10});
  const auto dataset = strategy.experimental_make_numpy_dataset(numpy_input);
  const auto dist_dataset = strategy.experimental_distribute_dataset(dataset.batch(5));
  std::vector<int64_t> rows;
  for (const auto& x : dist_dataset) {
    for (const at::Tensor& part : strategy.experimental_local_results(x)) {
      rows.push_back(part.size(0));
    }
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{3, 2, 3, 2}));
}

TEST(V1Documents, RunsAnInputIteratorFromAFunction) {
  const auto strategy = two_replicas();
  const int64_t global_batch_size = 4;
  const auto input_fn = [&](const InputContext& input_context) {
    const int64_t batch_size = input_context.get_per_replica_batch_size(global_batch_size);
    const auto d = data::from_tensors(at::tensor({1.F})).repeat().batch(batch_size);
    return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id);
  };
  const auto replica_fn = [](const at::Tensor& x) { return x.sum() * 10; };
  const Scope scope = strategy.scope();
  const auto iterator = strategy.make_input_fn_iterator(input_fn);
  const auto replica_results = strategy.experimental_run(replica_fn, iterator);
  EXPECT_EQ(printed(replica_results),
            "PerReplica:{\n"
            "  0: Tensor(20.0, shape=(), dtype=float32),\n"
            "  1: Tensor(20.0, shape=(), dtype=float32)\n"
            "}");
}

TEST(V1Documents, PassesTheNextStepToCallForEachReplica) {
  const auto strategy = two_replicas();
  const auto iterator = strategy.make_dataset_iterator(data::range(8).batch(4));
  iterator.initialize();
  const auto fn = [](const at::Tensor& x, int factor) { return x.sum() * factor; };
  const auto results = strategy.extended().call_for_each_replica(fn, iterator.get_next(), 10);
  EXPECT_EQ(printed(results),
            "PerReplica:{\n"
            "  0: Tensor(10, shape=(), dtype=int64),\n"
            "  1: Tensor(50, shape=(), dtype=int64)\n"
            "}");
  const std::vector<at::Tensor> local = strategy.experimental_local_results(results);
  ASSERT_EQ(local.size(), 2U);
  EXPECT_EQ(local[1].item<int64_t>(), 50);
}

TEST(V1Documents, LocalResultsOfASingleValueAreThatValue) {
  const auto strategy = two_replicas();
  EXPECT_EQ(strategy.experimental_local_results(7), std::vector<int>{7});
  EXPECT_EQ(strategy.unwrap(7), std::vector<int>{7});
  const Variable variable = strategy.scope([] { return Variable(1.); });
  EXPECT_EQ(strategy.experimental_local_results(variable).size(), 2U);
}

TEST(V1Documents, ReducesTheGlobalBatch) {
  const auto strategy = two_replicas();
  const auto dataset = data::range(8).batch(8);
  const auto iterator = strategy.make_dataset_iterator(dataset);
  const auto losses = strategy.experimental_run([](const at::Tensor& x) { return x; }, iterator);
  EXPECT_EQ(floats(strategy.reduce(ReduceOp::kSum, losses)), (Floats{4, 6, 8, 10}));
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, losses, /*axis=*/0).item<int64_t>(), 28);
}

TEST(V1Documents, DividesALastPartialBatchBySix) {
  const auto strategy = two_replicas();
  const auto iterator = strategy.make_dataset_iterator(data::range(14).batch(8));
  iterator.get_next();
  const auto last = iterator.get_next();
  EXPECT_EQ(last[0].size(0), 3);
  EXPECT_EQ(strategy.reduce(ReduceOp::kMean, last, /*axis=*/0).item<float>(), 10.5F);
}

TEST(V1Documents, SumsAnEpochInACustomLoop) {
  const v1::Strategy my_strategy = two_replicas();
  const auto dataset = data::from_tensor_slices(at::tensor({5.F, 6.F, 7.F, 8.F})).batch(2);
  const Scope scope = my_strategy.scope();
  const auto replica_fn = [](const at::Tensor& input) { return input.sum(); };
  const auto distribute_train_epoch = [&](const auto& epoch) {
    at::Tensor total_result = at::zeros({});
    for (const auto& x : epoch) {
      const auto per_replica_result = my_strategy.experimental_run_v2(replica_fn, x);
      total_result += my_strategy.reduce(ReduceOp::kSum, per_replica_result);
    }
    return total_result;
  };
  const auto dist_dataset = my_strategy.experimental_distribute_dataset(dataset);
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(distribute_train_epoch(dist_dataset).item<float>(), 26);
  }
}

TEST(V1Documents, UpdatesACopyOfTheConfiguration) {
  const auto strategy = two_replicas();
  const ConfigProto config;
  const ConfigProto updated = strategy.update_config_proto(config);
  EXPECT_TRUE(updated.isolate_session_state);
  EXPECT_FALSE(config.isolate_session_state);
}

// The examples of the page on tf.distribute that use names with the prefix experimental_.

TEST(V1Documents, PrintsTheStepsOfADistributedDataset) {
  const auto strategy = two_replicas();
  const auto dataset = data::from_tensor_slices(at::tensor({5.F, 6.F, 7.F, 8.F})).batch(2);
  const auto dist_dataset = strategy.experimental_distribute_dataset(dataset);
  std::string text;
  for (const auto& x : dist_dataset) text += printed(x) + "\n";
  EXPECT_EQ(text,
            "PerReplica:{\n"
            "  0: Tensor([5.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([6.], shape=(1,), dtype=float32)\n"
            "}\n"
            "PerReplica:{\n"
            "  0: Tensor([7.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([8.], shape=(1,), dtype=float32)\n"
            "}\n");
}

TEST(V1Documents, DoublesTheStepsOfADistributedDataset) {
  const auto strategy = two_replicas();
  const auto dataset = data::from_tensor_slices(at::tensor({5.F, 6.F, 7.F, 8.F})).batch(2);
  auto iterator = strategy.experimental_distribute_dataset(dataset).iterator();
  const auto f = [](const at::Tensor& x) { return x * 2.0; };
  EXPECT_EQ(printed(strategy.run(f, iterator.get_next())),
            "PerReplica:{\n"
            "  0: Tensor([10.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([12.], shape=(1,), dtype=float32)\n"
            "}");
  EXPECT_EQ(printed(strategy.run(f, iterator.get_next())),
            "PerReplica:{\n"
            "  0: Tensor([14.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([16.], shape=(1,), dtype=float32)\n"
            "}");
}

TEST(V1Documents, ReducesDistributedValuesAlongTheBatch) {
  const auto strategy = two_replicas();
  const auto dataset = data::from_tensor_slices(at::tensor({5.F, 6.F, 7.F, 8.F})).batch(2);
  auto iterator = strategy.experimental_distribute_dataset(dataset).iterator();
  EXPECT_EQ(to_text(strategy.reduce(ReduceOp::kSum, iterator.get_next(), /*axis=*/0)),
            "Tensor(11.0, shape=(), dtype=float32)");
}

TEST(V1Documents, RebatchesByHandInAFunction) {
  const auto strategy = two_replicas();
  const auto dataset_fn = [](const InputContext& input_context) {
    const int64_t global_batch_size = 4;
    const int64_t batch_size = input_context.get_per_replica_batch_size(global_batch_size);
    auto dataset = data::range(8).batch(global_batch_size);
    dataset = dataset.unbatch().batch(batch_size);
    return dataset.prefetch(2);
  };
  const auto dist_dataset = strategy.experimental_distribute_datasets_from_function(dataset_fn);
  std::string text;
  for (const auto& x : dist_dataset) text += printed(x) + "\n";
  EXPECT_EQ(text,
            "PerReplica:{\n"
            "  0: Tensor([0 1], shape=(2,), dtype=int64),\n"
            "  1: Tensor([2 3], shape=(2,), dtype=int64)\n"
            "}\n"
            "PerReplica:{\n"
            "  0: Tensor([4 5], shape=(2,), dtype=int64),\n"
            "  1: Tensor([6 7], shape=(2,), dtype=int64)\n"
            "}\n");
}

TEST(V1Documents, GathersDistributedValues) {
  const auto strategy = two_replicas();
  const auto distributed_values =
      strategy.experimental_distribute_values_from_function([](const ValueContext&) {
        return at::tensor({1, 2}).reshape({2, 1});
      });
  const at::Tensor gathered = strategy.gather(distributed_values, /*axis=*/0);
  EXPECT_EQ(gathered.sizes(), (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(floats(gathered), (Floats{1, 2, 1, 2}));
}

}  // namespace tutti::compat_test
