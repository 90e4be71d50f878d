// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/guide/data.md.

#include <algorithm>
#include <iostream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/temp_folder.h"

namespace data_docs_test {

namespace data = tutti::data;

const std::vector<std::string> kTwo = {"CPU:0", "CPU:1"};

std::vector<float> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(torch::kFloat).contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

TEST(Data, APipeline) {
  const at::Tensor images = torch::rand({100, 28, 28});
  const at::Tensor labels = torch::randint(0, 10, {100});
  int64_t rows = 0;
  // [snippet pipeline]
  auto batches = data::from_tensor_slices(std::tuple(images, labels))
                     .shuffle(10'000, {.seed = 1})
                     .map([](at::Tensor image, at::Tensor label) {
                       return std::tuple(image.flatten().mul(2).sub(1), label);
                     })
                     .batch(32)
                     .prefetch(2);
  for (auto& [x, y] : batches) {
    rows += x.size(0);  // x is float32[32, 784], y int64[32]; the last batch has 4 rows
  }
  // [/snippet]
  EXPECT_EQ(rows, 100);
}

TEST(Data, Structs) {
  double sum = 0;
  // [snippet struct]
  struct Example {
    at::Tensor features;
    int64_t label;
    std::string name;
  };
  auto examples = data::range(6).map([](int64_t i) {
    return Example{torch::full({3}, i), i % 2, "example " + std::to_string(i)};
  });
  for (auto& example : examples.filter([](const Example& e) { return e.label == 1; })) {
    sum += example.features.sum().item<double>();
  }
  // [/snippet]
  EXPECT_EQ(sum, 3 * (1 + 3 + 5));
}

TEST(Data, Examples) {
  const tutti::test::TempFolder folder;
  const std::string path = folder.path("train-0.tfrecord");
  // [snippet write]
  data::TfRecordWriter writer(path);
  for (int64_t i = 0; i < 10; ++i) {
    data::ExampleBuilder example;
    example.floats("x", {static_cast<float>(i), 1.0F}).int64s("y", {i % 3});
    writer.write(example.finish());
  }
  writer.close();
  // [/snippet]
  int64_t rows = 0;
  float sum = 0;
  // [snippet read]
  const auto spec =
      data::ExampleSpec().fixed<float>("x", {2}).fixed<int64_t>("y", {}, /*default_value=*/0);
  auto dataset = data::tf_record(data::match_files(folder.path("train-*.tfrecord")))
                     .batch(4)
                     .map([spec](std::vector<std::string> records) {
                       auto parsed = spec.parse_batch(records);
                       return std::tuple(parsed.tensor(0), parsed.tensor(1));
                     });
  for (auto& [x, y] : dataset) {
    rows += x.size(0);  // float32[4, 2] and int64[4]
    sum += x.sum().item<float>() + y.sum().item<float>();
  }
  // [/snippet]
  EXPECT_EQ(rows, 10);
  EXPECT_EQ(sum, 45 + 10 + 9);
}

TEST(Data, Interleave) {
  const tutti::test::TempFolder folder;
  for (int file = 0; file < 4; ++file) {
    data::TfRecordWriter writer(folder.path("part-" + std::to_string(file)));
    for (int i = 0; i < 3; ++i) writer.write(std::to_string(file * 10 + i));
    writer.close();
  }
  std::vector<std::string> all;
  // [snippet interleave]
  auto records = data::list_files(folder.path("part-*"), {.seed = 7})
                     .interleave([](const std::string& file) { return data::tf_record(file); },
                                 {.cycle_length = 4, .num_parallel_calls = 2});
  // [/snippet]
  for (auto& record : records) all.push_back(record);
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<std::string>{"0", "1", "10", "11", "12", "2", "20", "21", "22", "30",
                                           "31", "32"}));
}

TEST(Data, Positions) {
  auto dataset = data::range(100).shuffle(100, {.seed = 5}).batch(8);
  std::vector<float> rest;
  std::vector<float> restored;
  // [snippet position]
  auto pass = dataset.iterator();
  for (int i = 0; i < 5; ++i) pass.get_next();
  std::string position = pass.save();  // bytes: keep them with the checkpoint

  auto later = dataset.iterator();  // perhaps in another process
  later.restore(position);          // goes on with the sixth batch
  // [/snippet]
  while (const auto batch = pass.next()) {
    for (const float each : values(*batch)) rest.push_back(each);
  }
  while (const auto batch = later.next()) {
    for (const float each : values(*batch)) restored.push_back(each);
  }
  EXPECT_EQ(rest.size(), 60U);
  EXPECT_EQ(rest, restored);
}

TEST(Data, Distributed) {
  const at::Tensor x = torch::arange(10).to(torch::kFloat);
  float sum = 0;
  std::vector<std::vector<float>> seen(2);
  // [snippet distribute]
  tutti::MirroredStrategy strategy(kTwo);
  auto dataset = data::from_tensor_slices(x).batch(4);  // the global batch size
  for (auto& batch : strategy.distribute_dataset(dataset)) {
    auto doubled = strategy.run([](const at::Tensor& part) { return part * 2; }, batch);
    sum += strategy.reduce(tutti::ReduceOp::kSum, doubled, 0).item<float>();
  }
  // [/snippet]
  EXPECT_EQ(sum, 90);
  for (auto& batch : strategy.distribute_dataset(dataset)) {
    for (size_t i = 0; i < 2; ++i) {
      for (const float each : values(batch[i])) seen[i].push_back(each);
    }
  }
  EXPECT_EQ(seen[0], (std::vector<float>{0, 1, 4, 5, 8}));
  EXPECT_EQ(seen[1], (std::vector<float>{2, 3, 6, 7, 9}));
}

TEST(Data, Policies) {
  tutti::MirroredStrategy strategy(kTwo);
  auto dataset = data::range(8).batch(4);
  // [snippet policy]
  auto batches = strategy.distribute_dataset(
      dataset.with_options({.auto_shard_policy = data::AutoShardPolicy::kBatch}),
      {.per_replica_buffer_size = 2, .even_split = true});
  // [/snippet]
  EXPECT_EQ(batches.cardinality(), 2);
}

TEST(Data, FromFunction) {
  tutti::MirroredStrategy strategy(kTwo);
  std::vector<float> seen;
  // [snippet function]
  auto batches = strategy.distribute_datasets_from_function([](const tutti::InputContext& input) {
    return data::range(8)
        .shard(input.num_input_pipelines, input.input_pipeline_id)
        .batch(input.get_per_replica_batch_size(4));
  });
  // [/snippet]
  for (auto& batch : batches) {
    for (const float each : values(batch[1])) seen.push_back(each);
  }
  EXPECT_EQ(seen, (std::vector<float>{2, 3, 6, 7}));
}

TEST(Data, Iterators) {
  tutti::MirroredStrategy strategy(kTwo);
  auto batches = strategy.distribute_dataset(data::range(12).batch(4));
  int steps = 0;
  // [snippet iterator]
  auto iterator = batches.iterator();
  while (auto batch = iterator.get_next_as_optional()) {
    strategy.run([](const at::Tensor& part) { return part + 1; }, *batch);
    if (++steps == 2) break;
  }
  std::string position = iterator.save();

  auto later = batches.iterator();
  later.restore(position);
  // [/snippet]
  EXPECT_EQ(values(later.get_next()[0]), (std::vector<float>{8, 9}));
}

TEST(Data, Stats) {
  // [snippet stats]
  auto pass = data::range(1000).map([](int64_t i) { return i * i; }).batch(100).iterator();
  while (pass.next()) {
  }
  for (const auto& [stage, calls, seconds, skipped] : pass.stats()) {
    std::cout << stage << ": " << calls << " calls, " << seconds << " s\n";
  }
  // [/snippet]
  EXPECT_EQ(pass.stats().at(0).calls, 1000);
}

}  // namespace data_docs_test
