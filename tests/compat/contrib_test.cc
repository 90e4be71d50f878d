// SPDX-License-Identifier: Apache-2.0
//
// tf.contrib.distribute.MirroredStrategy: the examples and the rules of its document.

#include "tutti/compat/contrib.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/collectives/reduction_to_one_device.h"
#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

#include "tests/compat/document_examples.h"
#include "tests/support/expect_error.h"
#include "tests/support/free_addresses.h"
#include "tests/support/temp_folder.h"

namespace tutti::compat_test {

using Floats = std::vector<float>;

contrib::MirroredStrategy two_contrib() { return contrib::MirroredStrategy({"CPU:0", "CPU:1"}); }

TEST(ContribDocument, DistributesADatasetOfRecordFiles) {
  const test::TempFolder folder;
  const auto strategy = two_contrib();
  const auto dataset = data::tf_record(record_files(folder)).map(parse).batch(4);
  float total = 0;
  for (const auto& x : strategy.experimental_distribute_dataset(dataset)) {
    const auto sums = strategy.experimental_run_v2([](const at::Tensor& b) { return b.sum(); }, x);
    EXPECT_EQ(x[0].size(0), 2);  // the global batch is split
    total += strategy.reduce(ReduceOp::kSum, sums).item<float>();
  }
  EXPECT_EQ(total, 28);
}

TEST(ContribDocument, DistributesDatasetsFromAFunction) {
  const auto strategy = two_contrib();
  const int64_t global_batch_size = 6;
  const auto dataset_fn = [&](const InputContext& input_context) {
    const int64_t batch_size = input_context.get_per_replica_batch_size(global_batch_size);
    const auto d = data::from_tensors(at::tensor({1.F})).repeat().batch(batch_size);
    return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id);
  };
  const auto inputs = strategy.experimental_distribute_datasets_from_function(dataset_fn);
  for (const auto& batch : inputs) {
    const auto replica_results =
        strategy.experimental_run_v2([](const at::Tensor& x) { return x.sum(); }, batch);
    EXPECT_EQ(replica_results[1].item<float>(), 3);
    break;
  }
}

TEST(ContribDocument, MakesADatasetOfArrays) {
  const auto strategy = two_contrib();
  const auto dataset = strategy.experimental_make_numpy_dataset(at::ones({10}));
  EXPECT_EQ(
      strategy.experimental_distribute_dataset(dataset.batch(10)).iterator().get_next()[1].size(0),
      5);
}

TEST(ContribDocument, RunsAnInputIteratorFromAFunction) {
  const auto strategy = two_contrib();
  const auto input_fn = [](const InputContext& input_context) {
    const int64_t batch_size = input_context.get_per_replica_batch_size(4);
    const auto d = data::from_tensors(at::tensor({1.F})).repeat().batch(batch_size);
    return d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id);
  };
  const Scope scope = strategy.scope();
  const auto iterator = strategy.make_input_fn_iterator(input_fn);
  const auto replica_results =
      strategy.experimental_run([](const at::Tensor& x) { return x.sum(); }, iterator);
  EXPECT_EQ(strategy.experimental_local_results(replica_results)[1].item<float>(), 2);
}

TEST(ContribMirroredStrategy, GivesEachReplicaAWholeBatch) {
  const auto strategy = two_contrib();
  const auto iterator = strategy.make_dataset_iterator(data::range(9).batch(3));
  iterator.initialize();
  const auto first = iterator.get_next();
  EXPECT_EQ(floats(first[0]), (Floats{0, 1, 2}));
  EXPECT_EQ(floats(first[1]), (Floats{3, 4, 5}));
  const auto last = iterator.get_next();
  EXPECT_EQ(floats(last[0]), (Floats{6, 7, 8}));
  EXPECT_EQ(last[1].size(0), 0);
  // A plain v1 handle to it keeps this meaning.
  const v1::Strategy copy = strategy;
  EXPECT_EQ(copy.make_dataset_iterator(data::range(9).batch(3)).get_next()[1].size(0), 3);
  strategy.scope([] {
    const auto current = v1::get_strategy().make_dataset_iterator(data::range(9).batch(3));
    EXPECT_EQ(current.get_next()[1].size(0), 3);
  });
}

TEST(ContribMirroredStrategy, RefusesArgumentsThatExcludeEachOther) {
  using contrib::MirroredStrategy;
  const auto ops = std::make_shared<ReductionToOneDevice>();
  EXPECT_TUTTI_ERROR(MirroredStrategy({}, 1, 2), ErrorCode::kInvalidArgument, "num_gpus (1)",
                     "num_gpus_per_worker (2)");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0"}, 1), ErrorCode::kInvalidArgument,
                     "devices and num_gpus (1) exclude each other");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0"}, std::nullopt, 1), ErrorCode::kInvalidArgument,
                     "num_gpus_per_worker (1)");
  EXPECT_TUTTI_ERROR(MirroredStrategy({"CPU:0"}, std::nullopt, std::nullopt, ops, false, ops),
                     ErrorCode::kInvalidArgument, "cross_tower_ops is the older name");
  EXPECT_TUTTI_ERROR(MirroredStrategy({}, -1), ErrorCode::kInvalidArgument, "num_gpus is -1");
  const MirroredStrategy by_alias({"CPU:0", "CPU:1"}, std::nullopt, std::nullopt, nullptr, false,
                                  ops);
  EXPECT_EQ(&by_alias.extended()->cross_device_ops(), ops.get());
}

TEST(ContribMirroredStrategy, NamesCpuDevicesWhereGpusAreMissing) {
  EXPECT_EQ(contrib::MirroredStrategy({}, 0).extended().worker_devices()[0].short_name(), "CPU:0");
  EXPECT_TUTTI_ERROR(contrib::MirroredStrategy({}, 4096), ErrorCode::kNotFound,
                     "num_gpus is 4096, but this process has", "MirroredStrategy({\"CPU:0\"");
}

// What each of two workers reads from make_dataset_iterator().
std::vector<Floats> read_by_two_workers(const data::Dataset<at::Tensor>& dataset,
                                        bool auto_shard_dataset) {
  const ClusterSpec cluster{{"worker", test::free_addresses(2)}};
  std::vector<Floats> rows(2);
  const auto worker = [&](int task) {
    contrib::MirroredStrategy strategy({"CPU:0", "CPU:1"}, std::nullopt, std::nullopt, nullptr,
                                       auto_shard_dataset);
    strategy.configure(cluster, "worker", task);
    EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
    const auto iterator = strategy.make_dataset_iterator(dataset);
    while (const auto step = iterator.get_next_as_optional()) {
      for (const at::Tensor& part : *step) {
        for (const float row : floats(part)) rows[static_cast<size_t>(task)].push_back(row);
      }
    }
  };
  std::thread other([&] { worker(1); });
  worker(0);
  other.join();
  return rows;
}

TEST(ContribMirroredStrategy, ShardsOverWorkersOnlyWhenAsked) {
  const auto dataset = data::range(8).batch(1);
  const Floats all{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(read_by_two_workers(dataset, false), (std::vector<Floats>{all, all}));
  EXPECT_EQ(read_by_two_workers(dataset, true), (std::vector<Floats>{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  const test::TempFolder folder;
  const auto files = data::tf_record(record_files(folder)).map(parse).batch(1);
  EXPECT_EQ(read_by_two_workers(files, true), (std::vector<Floats>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  const auto too_few = data::tf_record({record_files(folder)[0]}).map(parse).batch(1);
  EXPECT_EQ(read_by_two_workers(too_few, true), (std::vector<Floats>{{0}, {1}}));
}

}  // namespace tutti::compat_test
