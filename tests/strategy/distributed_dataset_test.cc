// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/distributed_dataset.h"

#include <algorithm>
#include <atomic>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"

#include "tests/strategy/worker_threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::distributed_dataset_test {

using data::AutoShardPolicy;
using test::for_each_worker;

using Rows = std::vector<int64_t>;
using Steps = std::vector<Rows>;      // of one replica
using Replicas = std::vector<Steps>;  // of one worker
using Workers = std::vector<Replicas>;

void expect_error(ErrorCode code, std::string_view part, FunctionRef<void()> fn) {
  EXPECT_TRUE(test::throws_error(fn, code, {part}));
}

Rows rows_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kLong).contiguous();
  return {host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel()};
}

bool log_has(const test::LogCapture& log, LogLevel level, const std::string& text) {
  for (const test::LogLine& line : log.lines()) {
    if (line.level == level && line.text.find(text) != std::string::npos) return true;
  }
  return false;
}

Replicas read(const DistributedDataset<at::Tensor>& dataset) {
  Replicas replicas;
  for (const auto& step : dataset) {
    replicas.resize(step.size());
    for (size_t i = 0; i < step.size(); ++i) replicas[i].push_back(rows_of(step[i]));
  }
  return replicas;
}

MirroredStrategy mirrored(int replicas) {
  std::vector<std::string> devices;
  for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
  return MirroredStrategy(devices);
}

Workers read_workers(int workers, int replicas, const data::Dataset<at::Tensor>& dataset,
                     const InputOptions& options = {}) {
  Workers all(static_cast<size_t>(workers));
  for_each_worker(workers, replicas, [&](const Strategy& strategy, int w) {
    all[static_cast<size_t>(w)] = read(strategy.distribute_dataset(dataset, options));
  });
  return all;
}

data::Dataset<at::Tensor> with_policy(const data::Dataset<at::Tensor>& dataset,
                                      AutoShardPolicy policy) {
  return dataset.with_options({.auto_shard_policy = policy});
}

TEST(DistributedDataset, SplitsBatchesAsTheOriginalDocumentsShow) {
  EXPECT_EQ(read(mirrored(2).distribute_dataset(data::range(10).batch(4))),
            (Replicas{{{0, 1}, {4, 5}, {8}}, {{2, 3}, {6, 7}, {9}}}));
  EXPECT_EQ(read(mirrored(3).distribute_dataset(data::range(8).batch(4))),
            (Replicas{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}, {{}, {}}}));
  EXPECT_EQ(read(mirrored(3).distribute_dataset(data::range(10).batch(5))),
            (Replicas{{{0, 1}, {5, 6}}, {{2, 3}, {7, 8}}, {{4}, {9}}}));
}

TEST(DistributedDataset, SplitsEvenlyWhenAsked) {
  EXPECT_EQ(read(mirrored(3).distribute_dataset(data::range(8).batch(4), {.even_split = true})),
            (Replicas{{{0, 1}, {4, 5}}, {{2}, {6}}, {{3}, {7}}}));
}

TEST(DistributedDataset, FeedsRunAndReduceAsTheOriginalDocumentsShow) {
  const auto strategy = mirrored(2);
  const auto dataset = data::from_tensor_slices(at::tensor({5.0F, 6.0F, 7.0F, 8.0F})).batch(2);
  const auto distributed = strategy.distribute_dataset(dataset);
  std::vector<float> doubled;
  for (const auto& x : distributed) {
    for (const at::Tensor& y : strategy.run([](const at::Tensor& part) { return part * 2; }, x)) {
      ASSERT_EQ(y.sizes(), at::IntArrayRef({1}));
      doubled.push_back(y.item<float>());
    }
  }
  EXPECT_EQ(doubled, (std::vector<float>{10, 12, 14, 16}));

  auto iterator = distributed.iterator();
  const PerReplica<at::Tensor> first = iterator.get_next();
  EXPECT_EQ(first[0].item<float>(), 5);
  EXPECT_EQ(first[1].item<float>(), 6);
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, first, 0).item<float>(), 11);
}

TEST(DistributedDataset, FromFunctionGivesConsecutiveElementsToReplicas) {
  const auto strategy = mirrored(2);
  std::vector<std::string> contexts;
  const auto distributed =
      strategy.distribute_datasets_from_function([&](const InputContext& context) {
        std::ostringstream text;
        text << context << " of " << context.num_replicas_in_sync;
        contexts.push_back(text.str());
        return data::range(8)
            .batch(4)
            .unbatch()
            .batch(context.get_per_replica_batch_size(4))
            .prefetch(2);
      });
  EXPECT_EQ(read(distributed), (Replicas{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}));
  EXPECT_EQ(contexts,
            (std::vector<std::string>{"InputContext(input pipeline id 0, total: 1) of 2"}));
}

TEST(DistributedDataset, PerReplicaPipelines) {
  const auto strategy = mirrored(3);
  const auto distributed = strategy.distribute_datasets_from_function(
      [](const InputContext& context) {
        return data::range(context.input_pipeline_id * 10, context.input_pipeline_id * 11).batch(1);
      },
      {.replication_mode = InputReplicationMode::kPerReplica});
  EXPECT_EQ(read(distributed), (Replicas{{{}, {}}, {{10}, {}}, {{20}, {21}}}));
}

TEST(InputContext, DividesBatches) {
  EXPECT_EQ((InputContext{1, 0, 4}.get_per_replica_batch_size(12)), 3);
  expect_error(ErrorCode::kInvalidArgument,
               "the global batch size 10 is not divisible by the number of replicas, 4", [] {
                 InputContext{1, 0, 4}.get_per_replica_batch_size(10);
               });
}

TEST(DistributedDataset, WorkersShareDataAsTheOriginalDocumentsShow) {
  const auto dataset = data::range(8).batch(4);
  EXPECT_EQ(read_workers(2, 1, with_policy(dataset, AutoShardPolicy::kData)),
            (Workers{{{{0, 1}, {4, 5}}}, {{{2, 3}, {6, 7}}}}));
  EXPECT_EQ(read_workers(2, 1, with_policy(dataset, AutoShardPolicy::kOff)),
            (Workers{{{{0, 1}, {2, 3}, {4, 5}, {6, 7}}}, {{{0, 1}, {2, 3}, {4, 5}, {6, 7}}}}));
}

TEST(DistributedDataset, PiecesGoRoundTheWorkersUnderDataAndInOrderUnderBatch) {
  const auto dataset = data::range(8).batch(8);
  EXPECT_EQ(read_workers(2, 2, with_policy(dataset, AutoShardPolicy::kData)),
            (Workers{{{{0, 1}}, {{4, 5}}}, {{{2, 3}}, {{6, 7}}}}));
  EXPECT_EQ(read_workers(2, 2, with_policy(dataset, AutoShardPolicy::kBatch)),
            (Workers{{{{0, 1}}, {{2, 3}}}, {{{4, 5}}, {{6, 7}}}}));
}

TEST(DistributedDataset, BatchPolicyReadsAndMapsOwnRowsOnly) {
  for (const int threads : {0, 2}) {
    std::vector<std::atomic<int>> calls(2);
    std::vector<Replicas> all(2);
    for_each_worker(2, 2, [&](const Strategy& strategy, int w) {
      const auto dataset = data::range(20)
                               .shuffle(20, {.seed = 3})
                               .map(
                                   [&calls, w](int64_t x) {
                                     calls[static_cast<size_t>(w)].fetch_add(1);
                                     return x * 10;
                                   },
                                   {.num_parallel_calls = threads})
                               .batch(8)
                               .prefetch(1)
                               .with_options({.auto_shard_policy = AutoShardPolicy::kBatch});
      all[static_cast<size_t>(w)] = read(strategy.distribute_dataset(dataset));
    });
    Steps expected;
    for (auto& batch : data::range(20).shuffle(20, {.seed = 3}).batch(8)) {
      expected.push_back(rows_of(batch * 10));
    }
    // Each replica gets one of the four rows of the last batch.
    EXPECT_EQ(calls[0].load(), 10);
    EXPECT_EQ(calls[1].load(), 10);
    for (size_t step = 0; step < 3; ++step) {
      Rows together;
      for (const Replicas& worker : all) {
        for (const Steps& replica : worker) {
          together.insert(together.end(), replica.at(step).begin(), replica.at(step).end());
        }
      }
      EXPECT_EQ(together, expected[step]);
    }
  }
}

TEST(DistributedDataset, AWorkerThatNeverHasRowsGetsEmptyPiecesOfTheRightShape) {
  for (const int threads : {0, 2}) {
    for_each_worker(3, 1, [&](const Strategy& strategy, int w) {
      const auto dataset = data::range(4)
                               .repeat()
                               .map([](int64_t x) { return at::full({3}, x, at::kInt); },
                                    {.num_parallel_calls = threads})
                               .batch(2)
                               .with_options({.auto_shard_policy = AutoShardPolicy::kBatch});
      // Nothing is read ahead: a worker that has left cannot tell whether it has more data.
      auto iterator =
          strategy.distribute_dataset(dataset, {.per_replica_buffer_size = 0}).iterator();
      for (int i = 0; i < 5; ++i) {
        const at::Tensor part = iterator.get_next().only();
        EXPECT_EQ(part.sizes(), at::IntArrayRef({w == 2 ? 0 : 1, 3}));
        EXPECT_EQ(part.scalar_type(), at::kInt);
      }
    });
  }
}

TEST(DistributedDataset, WorkersWithoutASeedAgreeOnOne) {
  const auto make = [] { return data::range(100).shuffle(100).batch(10); };
  for (const AutoShardPolicy policy : {AutoShardPolicy::kData, AutoShardPolicy::kBatch}) {
    std::vector<Rows> rows(2);
    for_each_worker(2, 1, [&](const Strategy& strategy, int w) {
      const Replicas replicas = read(strategy.distribute_dataset(with_policy(make(), policy)));
      for (const Rows& step : replicas[0]) {
        auto& mine = rows[static_cast<size_t>(w)];
        mine.insert(mine.end(), step.begin(), step.end());
      }
    });
    Rows all = rows[0];
    all.insert(all.end(), rows[1].begin(), rows[1].end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, rows_of(at::arange(100)));
  }
}

TEST(DistributedDataset, UnevenWorkersGoOnUntilAllHaveEnded) {
  // With a function, worker 0 has one element, worker 1 three, worker 2 none.
  std::vector<Replicas> all(3);
  for_each_worker(3, 2, [&](const Strategy& strategy, int w) {
    all[static_cast<size_t>(w)] =
        read(strategy.distribute_datasets_from_function([](const InputContext& context) {
          const int64_t counts[] = {1, 3, 0};
          const int64_t id = context.input_pipeline_id;
          return data::range(id * 10, id * 10 + counts[id]).batch(1);
        }));
  });
  EXPECT_EQ(all[0], (Replicas{{{0}, {}}, {{}, {}}}));
  EXPECT_EQ(all[1], (Replicas{{{10}, {12}}, {{11}, {}}}));
  EXPECT_EQ(all[2], (Replicas{{{}, {}}, {{}, {}}}));
}

TEST(DistributedDataset, EmptyAndTinyDatasets) {
  EXPECT_EQ(read(mirrored(2).distribute_dataset(data::range(0).batch(4))), Replicas{});
  EXPECT_EQ(read(mirrored(3).distribute_dataset(data::range(1).batch(4))),
            (Replicas{{{0}}, {{}}, {{}}}));
  EXPECT_EQ(read(OneDeviceStrategy("CPU:0").distribute_dataset(data::range(3).batch(2))),
            (Replicas{{{0, 1}, {2}}}));
  EXPECT_EQ(read_workers(2, 2, data::range(0).batch(4)), (Workers{{}, {}}));
}

TEST(DistributedDataset, ElementsNeedNotBeBatchedForOneReplica) {
  const auto distributed = OneDeviceStrategy("CPU:0").distribute_dataset(data::range(3));
  Rows all;
  for (auto& step : distributed) all.push_back(step.only());
  EXPECT_EQ(all, (Rows{0, 1, 2}));
  expect_error(ErrorCode::kInvalidArgument, "Call .batch(n) first",
               [] { mirrored(2).distribute_dataset(data::range(3)).iterator().get_next(); });
}

TEST(DistributedIterator, EndsAndStaysAtTheEnd) {
  for (const int ahead : {0, 1, 3}) {
    auto iterator =
        mirrored(2)
            .distribute_dataset(data::range(2).batch(2), {.per_replica_buffer_size = ahead})
            .iterator();
    iterator.get_next();
    EXPECT_FALSE(iterator.get_next_as_optional().has_value());
    EXPECT_FALSE(iterator.get_next_as_optional().has_value());
    expect_error(ErrorCode::kNotFound, "the dataset has ended", [&] { iterator.get_next(); });
  }
}

TEST(DistributedIterator, RefusesToBeReadInAReplica) {
  const auto strategy = mirrored(2);
  auto iterator = strategy.distribute_dataset(data::range(4).batch(2)).iterator();
  expect_error(ErrorCode::kFailedPrecondition, "Call it outside of run()",
               [&] { strategy.run([&] { iterator.get_next(); }); });
}

TEST(DistributedIterator, ErrorsOfThePipelineReachTheReader) {
  for (const int ahead : {0, 2}) {
    const auto dataset = data::range(6)
                             .map([](int64_t x) {
                               if (x == 4) throw std::out_of_range("four");
                               return x;
                             })
                             .batch(2);
    auto iterator =
        mirrored(2).distribute_dataset(dataset, {.per_replica_buffer_size = ahead}).iterator();
    iterator.get_next();
    iterator.get_next();
    EXPECT_THROW(iterator.get_next(), std::out_of_range);
    EXPECT_THROW(iterator.get_next(), std::out_of_range) << "for good";
  }
}

TEST(DistributedIterator, PositionsUnderDataHoldForOtherNumbersOfWorkersAndReplicas) {
  const std::vector<data::Dataset<at::Tensor>> datasets = {
      data::range(50).shuffle(50, {.seed = 1}).batch(6),
      data::range(50).shuffle(7, {.seed = 1}).map([](int64_t x) { return x; }).batch(6).repeat(2),
      data::range(50).filter([](int64_t x) { return x % 5 != 0; }).shuffle(9, {.seed = 2}).batch(6),
      data::range(50).batch(6).map([](const at::Tensor& x) { return x + 0; },
                                   {.num_parallel_calls = 2})};
  for (const auto& base : datasets) {
    // Only one order is stored, so the shuffles must be in their first pass.
    for (const AutoShardPolicy policy : {AutoShardPolicy::kData, AutoShardPolicy::kBatch}) {
      const auto dataset = with_policy(base, policy);
      auto reader = mirrored(3).distribute_dataset(dataset).iterator();
      for (int i = 0; i < 3; ++i) reader.get_next();
      const std::string position = reader.save();
      Steps rest;
      while (const auto step = reader.get_next_as_optional()) {
        Rows rows;
        for (const at::Tensor& part : *step) {
          const Rows mine = rows_of(part);
          rows.insert(rows.end(), mine.begin(), mine.end());
        }
        rest.push_back(rows);
      }
      Workers all(2);
      for_each_worker(2, 2, [&](const Strategy& strategy, int w) {
        auto iterator = strategy.distribute_dataset(dataset).iterator();
        iterator.restore(position);
        while (const auto step = iterator.get_next_as_optional()) {
          auto& mine = all[static_cast<size_t>(w)];
          mine.resize(2);
          for (size_t i = 0; i < 2; ++i) mine[i].push_back(rows_of((*step)[i]));
        }
      });
      ASSERT_EQ(all[0].at(0).size(), rest.size());
      for (size_t step = 0; step < rest.size(); ++step) {
        Rows rows;
        const bool by_data = policy == AutoShardPolicy::kData;
        for (size_t piece = 0; piece < 4; ++piece) {
          const Rows& mine =
              by_data ? all[piece % 2][piece / 2][step] : all[piece / 2][piece % 2][step];
          rows.insert(rows.end(), mine.begin(), mine.end());
        }
        EXPECT_EQ(rows, rest[step]) << "step " << step;
      }
    }
  }
}

TEST(DistributedIterator, OtherPositionsBelongToTheirWorker) {
  const auto dataset = with_policy(data::range(12).batch(4), AutoShardPolicy::kOff);
  auto reader = mirrored(2).distribute_dataset(dataset).iterator();
  reader.get_next();
  const std::string position = reader.save();
  auto same = mirrored(2).distribute_dataset(dataset).iterator();
  same.restore(position);
  EXPECT_EQ(rows_of(same.get_next()[0]), rows_of(reader.get_next()[0]));
  expect_error(ErrorCode::kFailedPrecondition, "saved by worker 0 of 1 with 2 replicas",
               [&] { mirrored(3).distribute_dataset(dataset).iterator().restore(position); });
  expect_error(ErrorCode::kFailedPrecondition, "already been read from",
               [&] { reader.restore(position); });
}

TEST(DistributedDataset, SaysHowItSharded) {
  {
    test::LogCapture log;
    mirrored(2).distribute_dataset(data::range(8).batch(4));
    EXPECT_TRUE(
        log_has(log, LogLevel::kInfo,
                "MirroredStrategy: input of worker 0 of 1: sharded by data (kData), because its "
                "elements are not read file by file: the only worker reads everything."));
  }
  test::LogCapture log;
  read_workers(2, 2, data::range(8).batch(4));
  EXPECT_TRUE(log_has(
      log, LogLevel::kInfo,
      "MultiWorkerMirroredStrategy: input of worker 1 of 2: sharded by data (kData), because "
      "its elements are not read file by file: of the 4 pieces of each batch, this worker "
      "keeps pieces 1 and 3."));
}

TEST(DistributedDataset, RefusesOptionsThatContradictEachOther) {
  const auto strategy = mirrored(2);
  const auto dataset = data::range(4).batch(2);
  const auto make = [&](const InputContext&) { return dataset; };
  expect_error(ErrorCode::kInvalidArgument, "per_replica_buffer_size is -1",
               [&] { strategy.distribute_dataset(dataset, {.per_replica_buffer_size = -1}); });
  expect_error(ErrorCode::kInvalidArgument, "needs a pipeline for each replica",
               [&] { strategy.distribute_dataset(dataset, {.place_dataset_on_device = true}); });
  expect_error(ErrorCode::kInvalidArgument, "exclude each other", [&] {
    strategy.distribute_datasets_from_function(
        make,
        {.replication_mode = InputReplicationMode::kPerReplica, .place_dataset_on_device = true});
  });
  expect_error(ErrorCode::kUnimplemented, "distribute_datasets_from_function only", [&] {
    strategy.distribute_dataset(dataset, {.replication_mode = InputReplicationMode::kPerReplica});
  });
}

TEST(DistributedDataset, SyntheticDataReachReplicasWithoutRows) {
  const auto dataset = data::from_tensors(at::ones({3})).repeat(3).batch(2);
  std::vector<int64_t> rows;
  for (auto& step : mirrored(2).distribute_dataset(dataset)) {
    for (const at::Tensor& part : step) {
      EXPECT_EQ(part.size(1), 3);
      rows.push_back(part.size(0));
    }
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{1, 1, 1, 0}));
}

TEST(DistributedDataset, AWorkerThatLooksAtTheDatasetDoesNotChangeItsOrder) {
  std::vector<Rows> rows(2);
  for_each_worker(2, 1, [&](const Strategy& strategy, int w) {
    const auto dataset =
        with_policy(data::range(40).shuffle(40, {.seed = 1}).batch(4), AutoShardPolicy::kData);
    if (w == 0) dataset.iterator().get_next();
    const Replicas replicas = read(strategy.distribute_dataset(dataset));
    for (const Rows& step : replicas[0]) {
      rows[static_cast<size_t>(w)].insert(rows[static_cast<size_t>(w)].end(), step.begin(),
                                          step.end());
    }
  });
  Rows all = rows[0];
  all.insert(all.end(), rows[1].begin(), rows[1].end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, rows_of(at::arange(40)));
}

TEST(DistributedDataset, PipelinesOfReplicasHaveOneOrder) {
  const auto shuffled = data::range(30).shuffle(30);
  const auto distributed = mirrored(3).distribute_datasets_from_function(
      [&](const InputContext& context) {
        return shuffled.shard(context.num_input_pipelines, context.input_pipeline_id).batch(5);
      },
      {.replication_mode = InputReplicationMode::kPerReplica});
  Rows all;
  for (const Steps& replica : read(distributed)) {
    for (const Rows& step : replica) all.insert(all.end(), step.begin(), step.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, rows_of(at::arange(30)));
}

TEST(DistributedDataset, EveryEpochHasAnotherOrderAlsoWhenItIsDistributedAnew) {
  const auto dataset = data::range(40).shuffle(40, {.seed = 1}).batch(40);
  const auto strategy = OneDeviceStrategy("CPU:0");
  const Replicas first = read(strategy.distribute_dataset(dataset));
  EXPECT_NE(read(strategy.distribute_dataset(dataset)), first);
  EXPECT_EQ(read(OneDeviceStrategy("CPU:0").distribute_dataset(dataset)), first);
}

TEST(DistributedIterator, LaterPassesGoOnToo) {
  const auto make = [] { return data::range(12).shuffle(12, {.seed = 9}).batch(4).repeat(2); };
  const auto first = mirrored(2).distribute_dataset(make());
  auto reader = first.iterator();
  for (int i = 0; i < 4; ++i) reader.get_next();
  const std::string position = reader.save();
  Steps rest;
  while (const auto step = reader.get_next_as_optional()) rest.push_back(rows_of((*step)[0]));
  const Replicas next = read(first);

  const auto second = mirrored(2).distribute_dataset(make());
  auto resumed = second.iterator();
  resumed.restore(position);
  Steps restored;
  while (const auto step = resumed.get_next_as_optional()) restored.push_back(rows_of((*step)[0]));
  EXPECT_EQ(restored, rest);
  EXPECT_EQ(read(second), next);
}

TEST(DistributedDataset, DescribesItsElements) {
  const auto strategy = mirrored(2);
  const auto dataset =
      data::from_tensor_slices(std::tuple(at::zeros({8, 3}), at::zeros({8}, at::kLong))).batch(4);
  const auto distributed = strategy.distribute_dataset(dataset);
  EXPECT_EQ(data::to_text(distributed.element_spec()[1]), "(float32[2, 3], int64[2])");
  EXPECT_EQ(distributed.cardinality(), 2);
  EXPECT_EQ(distributed.reduce(0,
                               [](int sum, const auto& step) {
                                 return sum + static_cast<int>(std::get<0>(step[0]).size(0));
                               }),
            4);
}

TEST(Strategy, MakesDatasetsOfTensors) {
  const auto strategy = mirrored(2);
  at::Tensor ones = at::ones({10});
  const auto dataset = strategy.make_tensor_dataset(ones);
  ones.zero_();
  double sum = 0;
  for (auto& step : strategy.distribute_dataset(dataset.batch(4))) {
    sum += strategy.reduce(ReduceOp::kSum, step, 0).item<double>();
  }
  EXPECT_EQ(sum, 10);
}

TEST(DistributedDatasetSpec, RowsThatAreCertainAreReported) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1", "CPU:2"});
  const auto rows_by_replica = [&](const auto& dataset) {
    std::vector<int64_t> rows;
    const auto specs = strategy.distribute_dataset(dataset).element_spec();
    for (const data::ElementSpec& spec : specs) rows.push_back((*(*spec)[0].shape)[0]);
    return rows;
  };
  using data::AutoShardPolicy;
  const auto rows = data::from_tensor_slices(at::ones({20, 2}));
  const auto with = [](const auto& dataset, AutoShardPolicy policy) {
    return dataset.with_options({.auto_shard_policy = policy});
  };
  const auto full = rows.batch(6, {.drop_remainder = true});
  const auto uneven = rows.batch(7, {.drop_remainder = true});
  EXPECT_EQ(rows_by_replica(full), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(rows_by_replica(with(full, AutoShardPolicy::kOff)), (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(rows_by_replica(uneven), (std::vector<int64_t>{3, 3, 1})) << "pieces of each batch";
  EXPECT_EQ(rows_by_replica(with(uneven, AutoShardPolicy::kOff)), (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(rows_by_replica(rows.batch(6)), (std::vector<int64_t>{-1, -1, -1}));
  for (const auto& dataset : {full, uneven, with(uneven, AutoShardPolicy::kOff)}) {
    const auto batches = strategy.distribute_dataset(dataset);
    const auto specs = batches.element_spec();
    for (auto& step : batches) {
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(step[i].size(0), (*(*specs[i])[0].shape)[0]);
    }
  }
}

TEST(DistributedDatasetSpec, UnbatchedDataAreRefusedAtOnce) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  EXPECT_TUTTI_ERROR(strategy.distribute_dataset(data::range(4)), ErrorCode::kInvalidArgument,
                     "distribute_dataset: leaf 0 of an element of int64", "Call .batch(n) first");
  EXPECT_TUTTI_ERROR(strategy.distribute_dataset(data::from_tensor_slices(at::ones({4}))),
                     ErrorCode::kInvalidArgument, "float32[]", "has no rows");
}

TEST(DistributedDatasetSpec, DataInMemoryAreSharedWithoutAWarning) {
  const test::LogCapture log;
  test::for_each_worker(2, 1, [&](const Strategy& strategy, int) {
    for (auto& step : strategy.distribute_dataset(data::range(4).batch(2))) {
      EXPECT_EQ(step[0].size(0), 1);
    }
  });
  for (const auto& line : log.lines()) EXPECT_NE(line.level, LogLevel::kWarning) << line.text;
}

TEST(DistributedDatasetSpec, AnIteratorHasNext) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto iterator = strategy.distribute_dataset(data::range(2).batch(2)).iterator();
  EXPECT_EQ(iterator.next()[1].item<int64_t>(), 1);
  EXPECT_TUTTI_ERROR(iterator.next(), ErrorCode::kNotFound, "the dataset has ended");
}

}  // namespace tutti::distributed_dataset_test
