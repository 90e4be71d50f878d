// SPDX-License-Identifier: Apache-2.0
//
// Tests what pipelines yield, in which order, and how a pass resumes at a position.

#include "tutti/data/dataset.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::data::dataset_test {

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

std::vector<int64_t> numbers(int64_t n) {
  std::vector<int64_t> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<int64_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

// ---- sources ----------------------------------------------------------------------

TEST(Dataset, RangeCountsLikePython) {
  EXPECT_EQ(all_of(range(4)), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(all_of(range(2, 9, 3)), (std::vector<int64_t>{2, 5, 8}));
  EXPECT_EQ(all_of(range(5, 0, -2)), (std::vector<int64_t>{5, 3, 1}));
  EXPECT_TRUE(all_of(range(3, 3)).empty());
  EXPECT_EQ(range(2, 9, 3).cardinality(), 3);
  EXPECT_TUTTI_ERROR(range(0, 5, 0), ErrorCode::kInvalidArgument, "step is 0");
}

TEST(Dataset, IsReIterableAndTyped) {
  const auto dataset = from_tensor_slices(
      std::tuple(at::arange(6, at::kLong).view({3, 2}), std::vector<std::string>{"a", "b", "c"}));
  for (int pass = 0; pass < 2; ++pass) {
    int64_t row = 0;
    for (const auto& [x, name] : dataset) {
      EXPECT_EQ(to_vector(x), (std::vector<int64_t>{2 * row, 2 * row + 1}));
      EXPECT_EQ(name, std::string(1, static_cast<char>('a' + row)));
      ++row;
    }
    EXPECT_EQ(row, 3);
  }
  EXPECT_EQ(to_text(dataset.element_spec()), "(int64[2], string)");
  EXPECT_TUTTI_ERROR(from_tensor_slices(std::pair(at::ones({2}), at::ones({3}))),
                     ErrorCode::kInvalidArgument, "different numbers of rows");
  EXPECT_TUTTI_ERROR(from_tensor_slices(at::ones({})), ErrorCode::kInvalidArgument, "no rows");
}

TEST(Dataset, GeneratorsRestartInEachPass) {
  int passes = 0;
  const auto dataset = from_generator([&passes] {
    ++passes;
    return [i = 0]() mutable { return i < 3 ? std::optional(i++) : std::nullopt; };
  });
  EXPECT_EQ(all_of(dataset), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(all_of(dataset), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(passes, 2);
  EXPECT_EQ(dataset.cardinality(), kUnknown);
}

TEST(Dataset, StructsVectorsMapsAndOptionalsSurvive) {
  struct Item {
    at::Tensor x;
    std::vector<int32_t> ids;
    std::optional<double> weight;
    std::map<std::string, int64_t> counts;
    bool flag = false;
  };
  const auto dataset = range(3).map([](int64_t i) {
    Item item{at::full({2}, static_cast<double>(i)), {}, std::nullopt, {}, i == 1};
    for (int64_t k = 0; k < i; ++k) item.ids.push_back(static_cast<int32_t>(10 * i + k));
    if (i == 2) item.weight = 0.5;
    item.counts["n" + std::to_string(i)] = i;
    return item;
  });
  const auto items = all_of(dataset);
  ASSERT_EQ(items.size(), 3U);
  EXPECT_EQ(items[2].ids, (std::vector<int32_t>{20, 21}));
  EXPECT_TRUE(items[0].ids.empty());
  EXPECT_FALSE(items[1].weight.has_value());
  EXPECT_EQ(items[2].weight, 0.5);
  EXPECT_EQ(items[1].counts.at("n1"), 1);
  EXPECT_TRUE(items[1].flag);
}

// ---- transforms -------------------------------------------------------------------

TEST(Dataset, MapSpreadsTuplesAndFilterKeepsThem) {
  const auto sums = zip(range(5), range(10, 15)).map([](int64_t a, int64_t b) { return a + b; });
  EXPECT_EQ(all_of(sums), (std::vector<int64_t>{10, 12, 14, 16, 18}));
  const auto whole = zip(range(2), range(2)).map([](std::tuple<int64_t, int64_t> both) {
    return std::get<0>(both) * 100 + std::get<1>(both);
  });
  EXPECT_EQ(all_of(whole), (std::vector<int64_t>{0, 101}));
  EXPECT_EQ(all_of(range(10).filter([](int64_t i) { return i % 3 == 0; })),
            (std::vector<int64_t>{0, 3, 6, 9}));
}

TEST(Dataset, BatchesStackTensorsNumbersAndStrings) {
  const auto dataset = zip(range(5), from_tensor_slices(at::arange(10, at::kLong).view({5, 2})),
                           from_tensor_slices(std::vector<std::string>{"a", "b", "c", "d", "e"}));
  const auto batches = all_of(dataset.batch(2));
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(to_vector(std::get<0>(batches[1])), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::get<1>(batches[1]).sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(std::get<2>(batches[1]), (std::vector<std::string>{"c", "d"}));
  EXPECT_EQ(std::get<0>(batches[2]).size(0), 1) << "the rest is a batch";
  EXPECT_EQ(all_of(dataset.batch(2, {.drop_remainder = true})).size(), 2U);
  EXPECT_EQ(dataset.batch(2).cardinality(), 3);
  EXPECT_EQ(all_of(dataset.batch(2).unbatch()).size(), 5U);
  EXPECT_EQ(std::get<2>(all_of(dataset.batch(3).unbatch())[4]), "e");
  EXPECT_TUTTI_ERROR(range(3).batch(0), ErrorCode::kInvalidArgument, "Dataset::batch", "0");
  const auto ragged = range(3).map([](int64_t i) { return at::ones({i + 1}); }).batch(3);
  EXPECT_TUTTI_ERROR(all_of(ragged), ErrorCode::kInvalidArgument, "leaf 0 of element 1",
                     "float32[2]", "float32[1]", "padded_batch");
}

TEST(Dataset, IndexedAndPlainSourcesGiveTheSameBatches) {
  const at::Tensor rows = at::randn({101, 7});
  const auto indexed = from_tensor_slices(rows);
  const auto plain = indexed.map([](at::Tensor row) { return row; });
  for (const int64_t size : {1, 8, 50, 101, 200}) {
    const auto a = all_of(indexed.skip(3).shard(2, 1).take(40).repeat(3).batch(size));
    const auto b = all_of(plain.skip(3).shard(2, 1).take(40).repeat(3).batch(size));
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
    const auto c = all_of(indexed.shuffle(13, {.seed = 5}).batch(size));
    const auto d = all_of(plain.shuffle(13, {.seed = 5}).batch(size));
    ASSERT_EQ(c.size(), d.size());
    for (size_t i = 0; i < c.size(); ++i) EXPECT_TRUE(at::equal(c[i], d[i]));
  }
}

TEST(Dataset, SelectsRepeatsConcatenatesAndEnumerates) {
  EXPECT_EQ(all_of(range(10).skip(2).take(3)), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(all_of(range(3).take(-1)), numbers(3));
  EXPECT_TRUE(all_of(range(3).skip(-1)).empty());
  std::multiset<int64_t> seen;
  for (int64_t i = 0; i < 3; ++i) {
    const auto shard = all_of(range(10).shard(3, i));
    for (size_t k = 0; k < shard.size(); ++k) {
      EXPECT_EQ(shard[k], i + 3 * static_cast<int64_t>(k));
    }
    EXPECT_EQ(range(10).shard(3, i).cardinality(), static_cast<int64_t>(shard.size()));
    seen.insert(shard.begin(), shard.end());
  }
  EXPECT_EQ(std::vector<int64_t>(seen.begin(), seen.end()), numbers(10));
  EXPECT_TUTTI_ERROR(range(3).shard(2, 2), ErrorCode::kInvalidArgument, "no shard 2 of 2");
  EXPECT_EQ(all_of(range(2).repeat(3)), (std::vector<int64_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(range(2).repeat().cardinality(), kInfinite);
  EXPECT_EQ(all_of(range(2).repeat().take(5)), (std::vector<int64_t>{0, 1, 0, 1, 0}));
  EXPECT_TRUE(all_of(range(0).repeat()).empty()) << "an empty pass ends it";
  EXPECT_EQ(all_of(range(2).concatenate(range(5, 7))), (std::vector<int64_t>{0, 1, 5, 6}));
  const auto counted = all_of(range(5, 7).enumerate(1));
  EXPECT_EQ(counted[1], std::tuple(int64_t{2}, int64_t{6}));
  EXPECT_EQ(all_of(range(4).flat_map([](int64_t i) { return range(i); })),
            (std::vector<int64_t>{0, 0, 1, 0, 1, 2}));
}

TEST(Dataset, ShuffleIsAPermutationDeterminedByItsSeedAndPass) {
  const auto order = [](const ShuffleOptions& options, int64_t buffer = 100) {
    return all_of(range(50).shuffle(buffer, options));
  };
  auto sorted = order({.seed = 1});
  EXPECT_NE(sorted, numbers(50));
  EXPECT_EQ(order({.seed = 1}), sorted) << "the same seed";
  EXPECT_NE(order({.seed = 2}), sorted);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, numbers(50));
  const auto reshuffled = range(50).shuffle(50, {.seed = 1});
  EXPECT_NE(all_of(reshuffled), all_of(reshuffled)) << "a different order in each pass";
  const auto fixed = range(50).shuffle(50, {.seed = 1, .reshuffle_each_iteration = false});
  EXPECT_EQ(all_of(fixed), all_of(fixed));
  const auto twice = all_of(range(50).shuffle(50, {.seed = 1}).repeat(2));
  EXPECT_NE(std::vector(twice.begin(), twice.begin() + 50),
            std::vector(twice.begin() + 50, twice.end()));
  EXPECT_EQ(order({.seed = 9}, 1), numbers(50)) << "a buffer of one changes nothing";
  for (const int64_t i : order({.seed = 3}, 5)) ASSERT_LT(i, 50);
  EXPECT_TUTTI_ERROR(range(3).shuffle(0), ErrorCode::kInvalidArgument, "buffer_size is 0");
}

TEST(Dataset, ShufflesAreUniform) {
  // Element 0 lands in each place of 3000 orders of 6 about 500 times, within 5 sigma.
  std::array<int, 6> places{};
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const auto order = all_of(range(6).shuffle(6, {.seed = seed}));
    ++places[static_cast<size_t>(std::find(order.begin(), order.end(), 0) - order.begin())];
  }
  for (const int count : places) EXPECT_NEAR(count, 500, 102);
}

// ---- threads ----------------------------------------------------------------------

TEST(Dataset, ParallelMapKeepsTheOrderOrTheMultiset) {
  const auto slow_square = [](int64_t i) {
    if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    return i * i;
  };
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < 200; ++i) wanted.push_back(i * i);
  EXPECT_EQ(all_of(range(200).map(slow_square, {.num_parallel_calls = 4})), wanted);
  EXPECT_EQ(all_of(range(200).map(slow_square, {.num_parallel_calls = kAutoParallel})), wanted);
  auto any = all_of(range(200).map(slow_square, {.num_parallel_calls = 4, .ordered = false}));
  std::sort(any.begin(), any.end());
  EXPECT_EQ(any, wanted);
  EXPECT_TUTTI_ERROR(range(3).map(slow_square, {.num_parallel_calls = -2}),
                     ErrorCode::kInvalidArgument, "num_parallel_calls is -2");
}

TEST(Dataset, ErrorsOfFunctionsReachTheConsumerWithTheirType) {
  const auto bad = [](int64_t i) {
    if (i == 5) throw std::out_of_range("five");
    return i;
  };
  for (const int threads : {0, 1, 3}) {
    for (const int64_t ahead : {0, 2}) {
      auto pass = range(20).map(bad, {.num_parallel_calls = threads}).prefetch(ahead).iterator();
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(pass.get_next(), i);
      EXPECT_THROW(pass.next(), std::out_of_range);
      EXPECT_THROW(pass.next(), std::out_of_range) << "the error persists";
    }
  }
}

// These messages are all that a user sees of a function deep in a pipeline.
TEST(Dataset, ErrorsOfFunctionsNameStageAndElement) {
  const auto libtorch = [](int64_t i) {
    if (i == 7) at::ones({2, 3}).select(0, i);
    return i;
  };
  const auto tutti = [](int64_t i) {
    if (i == 7) throw Error(ErrorCode::kNotFound, "no such image.");
    return i;
  };
  const auto own = [](int64_t i) {
    if (i == 7) throw std::out_of_range("seven");
    return i;
  };
  for (const int threads : {0, 1, 3}) {
    const MapOptions options = {.num_parallel_calls = threads};
    const std::string place = "in Dataset::map, element 5 of its input, counted from 0";
    const auto numbers = range(2, 20);
    try {
      all_of(numbers.map(libtorch, options));
      ADD_FAILURE();
    } catch (const c10::IndexError& error) {
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
    }
    EXPECT_TUTTI_ERROR(all_of(numbers.map(tutti, options)), ErrorCode::kNotFound,
                       "no such image. (" + place + ")");
    const test::LogCapture log;
    EXPECT_THROW(all_of(numbers.map(own, options)), std::out_of_range);
    EXPECT_EQ(log.count("an exception " + place + ": seven"), 1) << log.text();
  }
  const test::LogCapture log;
  const auto filtered = range(2, 20).filter([&](int64_t i) { return own(i) % 2 == 0; });
  EXPECT_THROW(all_of(filtered), std::out_of_range);
  EXPECT_EQ(log.count("in Dataset::filter, element 5 of its input"), 1) << log.text();
  auto pass = range(2, 20).map(tutti).iterator();
  for (int i = 0; i < 3; ++i) pass.next();
  auto resumed = range(2, 20).map(tutti).iterator();
  resumed.restore(pass.save());
  resumed.next();
  resumed.next();
  EXPECT_TUTTI_ERROR(resumed.next(), ErrorCode::kNotFound,
                     "element 2 of its input, counted from the restored position");
}

TEST(Dataset, DroppingAPassHalfwayStopsItsThreads) {
  std::atomic<int> calls{0};
  {
    auto pass =
        range(1'000'000)
            .map([&](int64_t i) { return calls.fetch_add(1), i; }, {.num_parallel_calls = 3})
            .prefetch(4)
            .iterator();
    EXPECT_EQ(pass.get_next(), 0);
  }
  const int after = calls.load();
  EXPECT_LT(after, 1000) << "the buffers bound the calls";
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(calls.load(), after);
}

TEST(Dataset, GetNextThrowsAtTheEnd) {
  auto pass = range(1).iterator();
  EXPECT_EQ(pass.get_next(), 0);
  EXPECT_FALSE(pass.next().has_value());
  EXPECT_FALSE(pass.next().has_value());
  EXPECT_TUTTI_ERROR(pass.get_next(), ErrorCode::kNotFound, "the dataset has ended");
}

TEST(Dataset, StatsShowTheTimeOfFunctions) {
  auto pass = range(10)
                  .map([](int64_t i) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    return i;
                  })
                  .filter([](int64_t) { return true; })
                  .iterator();
  while (pass.next()) {
  }
  const auto stats = pass.stats();
  ASSERT_EQ(stats.size(), 2U);
  const auto& map = stats[0].stage == "map" ? stats[0] : stats[1];
  EXPECT_EQ(map.calls, 10);
  EXPECT_GE(map.seconds, 0.01);
}

// ---- positions --------------------------------------------------------------------

// Saves after each number of elements and compares the rest.
template <class T, class Same>
void expect_resumable(const Dataset<T>& dataset, const Same& same) {
  const std::vector<T> whole = all_of(dataset);
  for (size_t at = 0; at <= whole.size(); ++at) {
    auto pass = dataset.iterator();
    for (size_t i = 0; i < at; ++i) pass.get_next();
    const std::string position = pass.save();
    auto resumed = dataset.iterator();
    resumed.restore(position);
    for (size_t i = at; i < whole.size(); ++i) {
      const auto mine = pass.next();
      const auto theirs = resumed.next();
      ASSERT_TRUE(mine && theirs) << "after " << at << ", element " << i;
      ASSERT_TRUE(same(*mine, *theirs)) << "after " << at << ", element " << i;
    }
    EXPECT_FALSE(pass.next().has_value());
    EXPECT_FALSE(resumed.next().has_value());
  }
}

TEST(Dataset, PositionsResumeWithTheSameElements) {
  const auto equal = [](int64_t a, int64_t b) { return a == b; };
  const auto square = [](int64_t i) { return i * i; };
  expect_resumable(range(12), equal);
  expect_resumable(range(30).skip(3).shard(2, 1).take(9).repeat(2), equal);
  expect_resumable(range(20).shuffle(6, {.seed = 3}), equal);
  expect_resumable(range(9).shuffle(4, {.seed = 3}).repeat(3), equal);
  expect_resumable(range(20).map(square).shuffle(6, {.seed = 3}), equal);
  expect_resumable(range(20).map(square).shuffle(6, {.seed = 3, .max_saved_bytes = 0}), equal);
  expect_resumable(range(20).map(square, {.num_parallel_calls = 3}), equal);
  expect_resumable(range(20).map(square, {.num_parallel_calls = 3}).prefetch(3), equal);
  expect_resumable(range(20).filter([](int64_t i) { return i % 3 != 0; }), equal);
  expect_resumable(range(6).flat_map([](int64_t i) { return range(i); }), equal);
  expect_resumable(range(5).concatenate(range(7, 11)), equal);
  expect_resumable(range(3).concatenate(range(20).shuffle(20, {.seed = 4})), equal);
  expect_resumable(range(9).shuffle(9, {.seed = 4}).concatenate(range(3)).repeat(2), equal);
  expect_resumable(range(20)
                       .map(square)
                       .shuffle(20, {.seed = 3})
                       .map(square)
                       .shuffle(6, {.seed = 4, .max_saved_bytes = 0}),
                   equal);
  expect_resumable(range(7).batch(3).map([](at::Tensor t) { return t.sum().item<int64_t>(); }),
                   equal);
  const auto tensors = [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); };
  expect_resumable(range(23).shuffle(10, {.seed = 1}).batch(4).prefetch(2), tensors);
  expect_resumable(range(23).map(square).batch(4).unbatch().batch(3), tensors);
  expect_resumable(zip(range(9), from_tensor_slices(at::randn({9, 3})))
                       .map([](int64_t, at::Tensor t) { return t; })
                       .shuffle(4, {.seed = 8}),
                   tensors);
}

TEST(Dataset, RejectsDamagedAndForeignPositions) {
  auto pass = range(10).map([](int64_t i) { return i; }).iterator();
  pass.get_next();
  const std::string position = pass.save();
  auto other = range(10).iterator();
  EXPECT_TUTTI_ERROR(other.restore(position), ErrorCode::kDataLoss, "a different pipeline", "map");
  for (size_t size = 0; size < position.size(); ++size) {
    auto fresh = range(10).map([](int64_t i) { return i; }).iterator();
    EXPECT_TUTTI_ERROR(fresh.restore(position.substr(0, size)), ErrorCode::kDataLoss);
  }
}

}  // namespace tutti::data::dataset_test
