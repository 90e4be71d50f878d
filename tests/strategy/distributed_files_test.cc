// SPDX-License-Identifier: Apache-2.0
//
// Distributed datasets of files: which files and rows each worker reads.

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/files.h"
#include "tutti/strategy/distributed_dataset.h"
#include "tutti/strategy/mirrored_strategy.h"

#include "tests/strategy/worker_threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/temp_folder.h"

namespace tutti::distributed_files_test {

using data::AutoShardPolicy;
using test::for_each_worker;
using test::TempFolder;

using Lines = std::vector<std::string>;
using Rows = std::vector<int64_t>;
using Steps = std::vector<std::vector<Rows>>;  // by replica
using Workers = std::vector<Steps>;

Rows rows_of(const Lines& lines) {
  Rows rows;
  for (const std::string& line : lines) rows.push_back(std::stoll(line));
  return rows;
}

Rows rows_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

Lines lines_of(int64_t begin, int64_t end) {
  Lines lines;
  for (int64_t i = begin; i < end; ++i) lines.push_back(std::to_string(i));
  return lines;
}

std::string text_file(const TempFolder& folder, const std::string& name, int64_t begin,
                      int64_t end) {
  std::string text;
  for (const std::string& line : lines_of(begin, end)) text += line + "\n";
  test::write_file(folder.path(name), text);
  return folder.path(name);
}

std::string record_file(const TempFolder& folder, const std::string& name, int64_t begin,
                        int64_t end) {
  data::TfRecordWriter writer(folder.path(name));
  for (const std::string& line : lines_of(begin, end)) writer.write(line);
  writer.close();
  return folder.path(name);
}

template <class T>
Steps read(const DistributedDataset<T>& dataset) {
  Steps replicas;
  for (const auto& step : dataset) {
    replicas.resize(step.size());
    for (size_t i = 0; i < step.size(); ++i) replicas[i].push_back(rows_of(step[i]));
  }
  return replicas;
}

// Each worker calls `make`, as on several machines.
template <class F>
Workers read_workers(int workers, int replicas, const F& make) {
  Workers all(static_cast<size_t>(workers));
  for_each_worker(workers, replicas, [&](const Strategy& strategy, int w) {
    all[static_cast<size_t>(w)] = read(strategy.distribute_dataset(make()));
  });
  return all;
}

std::vector<Rows> sorted_rows(const Workers& workers) {
  std::vector<Rows> all;
  for (const Steps& replicas : workers) {
    all.emplace_back();
    for (const auto& steps : replicas) {
      for (const Rows& rows : steps) all.back().insert(all.back().end(), rows.begin(), rows.end());
    }
    std::sort(all.back().begin(), all.back().end());
  }
  return all;
}

bool warned(const test::LogCapture& log, const std::string& text) {
  for (const test::LogLine& line : log.lines()) {
    if (line.level == LogLevel::kWarning && line.text.find(text) != std::string::npos) return true;
  }
  return false;
}

data::Dataset<std::string> records_of(const std::string& name) { return data::tf_record(name); }

TEST(DistributedFiles, WorkersReadOtherFilesAsTheOriginalDocumentsShow) {
  const TempFolder folder;
  const Lines files{text_file(folder, "a", 0, 4), text_file(folder, "b", 4, 8)};
  for (const AutoShardPolicy policy : {AutoShardPolicy::kFile, AutoShardPolicy::kAuto}) {
    const test::LogCapture log;
    EXPECT_EQ(read_workers(2, 1,
                           [&] {
                             return data::text_line(files).batch(4).with_options(
                                 {.auto_shard_policy = policy});
                           }),
              (Workers{{{{0, 1}, {2, 3}}}, {{{4, 5}, {6, 7}}}}));
    EXPECT_FALSE(warned(log, ""));
  }
}

TEST(DistributedFiles, TooFewFilesFallBackToDataOrAreRefused) {
  const TempFolder folder;
  const std::string file = text_file(folder, "a", 0, 8);
  const test::LogCapture log;
  EXPECT_EQ(read_workers(2, 1, [&] { return data::text_line(file).batch(4); }),
            (Workers{{{{0, 1}, {4, 5}}}, {{{2, 3}, {6, 7}}}}));
  EXPECT_TRUE(
      warned(log, "sharded by data (kData), because it reads 1 file, too few for 2 workers"));
  std::atomic<int> refused{0};
  for_each_worker(3, 1, [&](const Strategy& strategy, int) {
    const auto by_file =
        data::text_line(file).batch(4).with_options({.auto_shard_policy = AutoShardPolicy::kFile});
    EXPECT_TUTTI_ERROR(strategy.distribute_dataset(by_file), ErrorCode::kInvalidArgument,
                       "could not apply FILE based sharding", "it reads 1 file",
                       "too few for 3 workers", "kData or kAuto");
    ++refused;
  });
  EXPECT_EQ(refused, 3);
}

TEST(DistributedFiles, WithoutFilesThereAreNoSteps) {
  const TempFolder folder;
  const Lines files{text_file(folder, "a", 0, 2), text_file(folder, "b", 2, 4)};
  const test::LogCapture log;
  const data::DatasetOptions by_file{.auto_shard_policy = AutoShardPolicy::kFile};
  EXPECT_EQ(
      read_workers(2, 2, [&] { return data::text_line(Lines{}).batch(4).with_options(by_file); }),
      (Workers{{}, {}}));
  EXPECT_EQ(read_workers(2, 2,
                         [&] {
                           return data::from_tensor_slices(Lines{})
                               .flat_map(records_of)
                               .batch(4)
                               .with_options(by_file);
                         }),
            (Workers{{}, {}}));
  EXPECT_EQ(read_workers(2, 1,
                         [&] {
                           return data::text_line(Lines{})
                               .concatenate(data::text_line(files))
                               .batch(2)
                               .with_options(by_file);
                         }),
            (Workers{{{{0}, {1}}}, {{{2}, {3}}}}))
      << "an empty branch does not hinder the others";
}

TEST(DistributedFiles, RowsOfFilesAreCutAcrossBatches) {
  // The last batch of 2 over 2 replicas: the stream of rows is cut by 2, batches into halves.
  const TempFolder folder;
  const std::string file = text_file(folder, "a", 0, 6);
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  EXPECT_EQ(read(strategy.distribute_dataset(data::text_line(file).batch(4))),
            (Steps{{{0, 1}, {4, 5}}, {{2, 3}, {}}}));
  EXPECT_EQ(read(strategy.distribute_dataset(data::range(6).batch(4))),
            (Steps{{{0, 1}, {4}}, {{2, 3}, {5}}}));
  const auto mapped = data::text_line(file).batch(4).map([](const Lines& lines) { return lines; });
  EXPECT_EQ(read(strategy.distribute_dataset(mapped)), (Steps{{{0, 1}, {4}}, {{2, 3}, {5}}}))
      << "the batch size is unknown after map()";
}

TEST(DistributedFiles, ListedFilesAreShardedByNameBelowShuffles) {
  const TempFolder folder;
  for (int64_t i = 0; i < 5; ++i) {
    record_file(folder, "part-" + std::to_string(i), 10 * i, 10 * i + 3);
  }
  const std::vector<Rows> expected{{0, 1, 2, 20, 21, 22, 40, 41, 42}, {10, 11, 12, 30, 31, 32}};
  for (const bool shuffled : {false, true}) {
    const test::LogCapture log;
    const Workers plain = read_workers(2, 1, [&] {
      return data::list_files(folder.path("part-*"), {.shuffle = shuffled})
          .flat_map(records_of)
          .batch(2);
    });
    EXPECT_EQ(sorted_rows(plain), expected);
    if (!shuffled) {
      EXPECT_EQ(plain[1], (Steps{{{10}, {11}, {12}, {30}, {31}, {32}, {}, {}, {}}}));
    }
    const Workers more = read_workers(2, 1, [&] {
      return data::list_files(folder.path("part-*"), {.shuffle = shuffled})
          .shuffle(10)
          .flat_map(records_of)
          .shuffle(4)
          .batch(2);
    });
    EXPECT_EQ(sorted_rows(more), expected) << "shuffles without a seed";
    EXPECT_FALSE(warned(log, ""));
  }
}

TEST(DistributedFiles, AllBranchesAreSharded) {
  const TempFolder folder;
  Lines left;
  Lines right;
  for (int64_t i = 0; i < 2; ++i) {
    left.push_back(text_file(folder, "left" + std::to_string(i), 10 * i, 10 * i + 2));
    right.push_back(record_file(folder, "right" + std::to_string(i), 100 + 10 * i, 102 + 10 * i));
  }
  const test::LogCapture log;
  EXPECT_EQ(read_workers(2, 1,
                         [&] {
                           return zip(data::text_line(left), data::tf_record(right))
                               .map([](const std::string& a, const std::string& b) {
                                 return 1000 * std::stoll(a) + std::stoll(b);
                               })
                               .map([](long long x) { return static_cast<int64_t>(x); })
                               .batch(2);
                         }),
            (Workers{{{{100}, {1101}}}, {{{10110}, {11111}}}}));
  EXPECT_EQ(
      read_workers(
          2, 1, [&] { return data::text_line(left).concatenate(data::tf_record(right)).batch(2); }),
      (Workers{{{{0}, {1}, {100}, {101}}}, {{{10}, {11}, {110}, {111}}}}));
  EXPECT_FALSE(warned(log, ""));
}

TEST(DistributedFiles, EveryShardHintIsFilledIn) {
  EXPECT_EQ(read_workers(2, 1,
                         [] {
                           return data::range(8)
                               .shard(data::kShardHint, 0)
                               .map([](int64_t x) { return x; })
                               .shard(data::kShardHint, 0)
                               .batch(2)
                               .with_options({.auto_shard_policy = AutoShardPolicy::kHint});
                         }),
            (Workers{{{{0}, {4}}}, {{{3}, {7}}}}));
}

TEST(DistributedFiles, UnorderedMapsLoseNothingWhereWorkersShareElements) {
  const TempFolder folder;
  const std::string file = text_file(folder, "a", 0, 60);
  const auto uneven = [](const std::string& line) {
    int64_t x = std::stoll(line);
    for (std::atomic<int64_t> spin = x % 7 * 20'000; spin > 0;) --spin;
    return x;
  };
  for (const AutoShardPolicy policy : {AutoShardPolicy::kData, AutoShardPolicy::kBatch}) {
    Rows all;
    for (const Rows& rows : sorted_rows(read_workers(3, 1, [&] {
           return data::text_line(file)
               .map(uneven, {.num_parallel_calls = 3, .ordered = false})
               .batch(6)
               .with_options({.auto_shard_policy = policy});
         }))) {
      all.insert(all.end(), rows.begin(), rows.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, rows_of(lines_of(0, 60)));
  }
}

TEST(DistributedFiles, AWorkerThatNeverHadARowGetsTheShapeOfAMappedOne) {
  const TempFolder folder;
  const Lines files{text_file(folder, "a", 0, 4), text_file(folder, "b", 0, 0)};
  std::atomic<int> empty_steps{0};
  for_each_worker(2, 1, [&](const Strategy& strategy, int worker) {
    const auto rows = data::text_line(files)
                          .map([](const std::string& line) {
                            return std::tuple(at::full({3}, std::stod(line), at::kDouble),
                                              at::ones({2, 5}, at::kInt));
                          })
                          .cache()  // of this worker: it must not learn the sample's rows
                          .shuffle(8)
                          .batch(2)
                          .with_options({.auto_shard_policy = AutoShardPolicy::kFile});
    for (auto& step : strategy.distribute_dataset(rows)) {
      const auto& [x, y] = step[0];
      ASSERT_EQ(x.sizes(), (at::IntArrayRef{worker == 0 ? 1 : 0, 3}));
      EXPECT_EQ(x.scalar_type(), at::kDouble);
      ASSERT_EQ(y.sizes(), (at::IntArrayRef{worker == 0 ? 1 : 0, 2, 5}));
      EXPECT_EQ(y.scalar_type(), at::kInt);
      EXPECT_EQ(x.matmul(at::ones({3, 4}, at::kDouble)).size(1), 4);
      empty_steps += worker;
    }
  });
  EXPECT_EQ(empty_steps, 4);
}

TEST(DistributedFiles, OneWorkerReadsAllWhateverThePolicy) {
  const MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto batches =
      data::range(6).batch(4).with_options({.auto_shard_policy = AutoShardPolicy::kFile});
  std::vector<Rows> steps;
  for (auto& step : strategy.distribute_dataset(batches)) {
    steps.push_back(rows_of(step[0]));
    steps.push_back(rows_of(step[1]));
  }
  EXPECT_EQ(steps, (std::vector<Rows>{{0, 1}, {2, 3}, {4, 5}, {}}));
}

}  // namespace tutti::distributed_files_test
