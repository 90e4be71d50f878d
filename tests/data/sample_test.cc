// SPDX-License-Identifier: Apache-2.0
//
// Tests sample_from_datasets: shares, reproducibility, ends, positions.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/data/dataset.h"

#include "tests/support/expect_error.h"

namespace tutti::data::sample_test {

using Values = std::vector<int64_t>;

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

// Dataset i has sizes[i] elements: 100 * i, 100 * i + 1, ...
std::vector<Dataset<int64_t>> parts(const Values& sizes) {
  std::vector<Dataset<int64_t>> datasets;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t first = 100 * static_cast<int64_t>(i);
    datasets.push_back(range(first, first + sizes[i]));
  }
  return datasets;
}

TEST(SampleFromDatasets, DrawsByWeight) {
  const std::vector<Dataset<int64_t>> endless = {range(1).repeat(), range(1, 2).repeat(),
                                                 range(2, 3).repeat()};
  const auto dataset = sample_from_datasets(endless, {1, 2, 5}, {.seed = 3});
  EXPECT_EQ(dataset.cardinality(), kInfinite);
  std::array<int, 3> counts{};
  for (const int64_t i : dataset.take(8000)) ++counts[static_cast<size_t>(i)];
  // Allows 5 standard deviations.
  EXPECT_NEAR(counts[0], 1000, 5 * std::sqrt(8000.0 * 1 / 8 * 7 / 8));
  EXPECT_NEAR(counts[1], 2000, 5 * std::sqrt(8000.0 * 2 / 8 * 6 / 8));
  EXPECT_NEAR(counts[2], 5000, 5 * std::sqrt(8000.0 * 5 / 8 * 3 / 8));
  counts = {};
  for (const int64_t i : sample_from_datasets(endless, {}, {.seed = 3}).take(6000)) {
    ++counts[static_cast<size_t>(i)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 2000, 5 * std::sqrt(6000.0 * 1 / 3 * 2 / 3));
}

TEST(SampleFromDatasets, GivesEveryElementOnceAndInOrder) {
  const auto dataset = sample_from_datasets(parts({5, 0, 20, 1}), {3, 1, 1, 0.5}, {.seed = 7});
  EXPECT_EQ(dataset.cardinality(), 26);
  const Values all = all_of(dataset);
  ASSERT_EQ(all.size(), 26U);
  for (const int64_t first : {0, 200, 300}) {
    Values mine;
    for (const int64_t each : all) {
      if (each / 100 == first / 100) mine.push_back(each);
    }
    EXPECT_EQ(mine, all_of(range(first, first + static_cast<int64_t>(mine.size()))));
  }
  auto pass = dataset.iterator();
  while (pass.next()) {
  }
  EXPECT_FALSE(pass.next().has_value()) << "the end is final";
}

TEST(SampleFromDatasets, IsDeterminedByItsSeedAndPass) {
  const auto make = [](uint64_t seed) {
    return sample_from_datasets(parts({40, 40}), {}, {.seed = seed});
  };
  const auto dataset = make(1);
  const Values first = all_of(dataset);
  EXPECT_EQ(all_of(make(1)), first);
  EXPECT_NE(all_of(make(2)), first);
  const Values second = all_of(dataset);
  EXPECT_NE(second, first) << "a different order in each pass";
  const auto again = make(1);
  all_of(again);
  EXPECT_EQ(all_of(again), second);
  const Values twice = all_of(make(1).repeat(2));
  EXPECT_EQ(Values(twice.begin(), twice.begin() + 80), first);
  EXPECT_NE(Values(twice.begin() + 80, twice.end()), first);
}

TEST(SampleFromDatasets, StopsAtAnEmptyDatasetIfAsked) {
  const auto dataset =
      sample_from_datasets(parts({3, 100}), {1, 1}, {.seed = 2, .stop_on_empty_dataset = true});
  EXPECT_EQ(dataset.cardinality(), kUnknown);
  const Values all = all_of(dataset);
  // After the last element of dataset 0, the next draw of it ends everything.
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](int64_t i) { return i < 100; }), 3);
  EXPECT_LT(all.size(), 103U);
  auto pass = dataset.iterator();
  while (pass.next()) {
  }
  EXPECT_FALSE(pass.next().has_value());
  // A dataset with weight 0 is never drawn.
  const auto rest = sample_from_datasets(parts({0, 4}), {0, 1}, {.stop_on_empty_dataset = true});
  EXPECT_EQ(all_of(rest), (Values{100, 101, 102, 103}));
}

TEST(SampleFromDatasets, PositionsResumeWithTheSameElements) {
  for (const bool stops : {false, true}) {
    const auto make = [stops] {
      return sample_from_datasets(parts({4, 9, 2}), {1, 2, 1},
                                  {.seed = 11, .stop_on_empty_dataset = stops})
          .repeat(2);
    };
    const auto dataset = make();
    const Values whole = all_of(make());
    for (size_t at = 0; at <= whole.size(); ++at) {
      auto pass = dataset.iterator();
      for (size_t i = 0; i < at; ++i) pass.get_next();
      auto resumed = make().iterator();
      resumed.restore(pass.save());
      while (const auto mine = pass.next()) ASSERT_EQ(resumed.next(), mine) << "after " << at;
      EXPECT_FALSE(resumed.next().has_value());
    }
  }
  auto pass = sample_from_datasets(parts({4, 9, 2})).iterator();
  pass.get_next();
  auto other = sample_from_datasets(parts({4, 9})).iterator();
  EXPECT_TUTTI_ERROR(other.restore(pass.save()), ErrorCode::kDataLoss, "3 datasets");
}

TEST(SampleFromDatasets, ErrorsOfAThreadReachTheConsumer) {
  const auto bad = range(50).map(
      [](int64_t i) {
        if (i == 3) throw std::out_of_range("three");
        return i;
      },
      {.num_parallel_calls = 2});
  auto pass = sample_from_datasets<int64_t>({bad, bad}).iterator();
  EXPECT_THROW(
      {
        while (pass.next()) {
        }
      },
      std::out_of_range);
}

TEST(SampleFromDatasets, RejectsInvalidWeights) {
  EXPECT_TUTTI_ERROR(sample_from_datasets<int64_t>({}), ErrorCode::kInvalidArgument, "no datasets");
  EXPECT_TUTTI_ERROR(sample_from_datasets(parts({1, 1}), {1}), ErrorCode::kInvalidArgument,
                     "1 weights for 2 datasets");
  EXPECT_TUTTI_ERROR(sample_from_datasets(parts({1, 1}), {1, -1}), ErrorCode::kInvalidArgument,
                     "weight 1 is -1");
  EXPECT_TUTTI_ERROR(sample_from_datasets(parts({1, 1}), {0, 0}), ErrorCode::kInvalidArgument,
                     "sum of the weights is 0");
  EXPECT_TUTTI_ERROR(sample_from_datasets(parts({1}), {std::numeric_limits<double>::infinity()}),
                     ErrorCode::kInvalidArgument, "finite");
  EXPECT_TUTTI_ERROR(sample_from_datasets(parts({1}), {std::nan("")}), ErrorCode::kInvalidArgument,
                     "weight 0");
  EXPECT_EQ(to_text(sample_from_datasets(parts({1, 1})).element_spec()), "int64 number");
  EXPECT_EQ(sample_from_datasets(parts({0, 0})).cardinality(), 0);
}

}  // namespace tutti::data::sample_test
