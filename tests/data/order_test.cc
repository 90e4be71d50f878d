// SPDX-License-Identifier: Apache-2.0
//
// Tests what the orders of random nodes depend on, and that positions keep them.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/dataset.h"

#include "tests/support/expect_error.h"

namespace tutti::data::order_test {

using Values = std::vector<int64_t>;
using Make = std::function<Dataset<int64_t>()>;

Values take(Iterator<int64_t>& pass, size_t count = SIZE_MAX) {
  Values values;
  while (values.size() < count) {
    const auto value = pass.next();
    if (!value) break;
    values.push_back(*value);
  }
  return values;
}

Values all_of(const Dataset<int64_t>& dataset) {
  auto pass = dataset.iterator();
  return take(pass);
}

// Calls `make` for every program that the position passes through.
void expect_to_resume(const Make& make, size_t elements) {
  for (size_t at = 0; at < elements; ++at) {
    const auto dataset = make();
    take(*std::make_unique<Iterator<int64_t>>(dataset.iterator()));  // an earlier epoch
    auto pass = dataset.iterator();
    take(pass, at);
    const std::string position = pass.save();
    const auto later = make();
    auto resumed = later.iterator();
    resumed.restore(position);
    EXPECT_EQ(take(resumed), take(pass)) << "after " << at;
  }
}

TEST(Order, PositionsHoldTheDrawnSeed) {
  expect_to_resume([] { return range(7).shuffle(7).repeat(3); }, 21);
  expect_to_resume([] { return range(7).map([](int64_t i) { return i; }).shuffle(4).repeat(3); },
                   21);
  expect_to_resume(
      [] {
        return range(7)
            .map([](int64_t i) { return i; })
            .shuffle(4, {.max_saved_bytes = 0})
            .repeat(2);
      },
      14);
  expect_to_resume(
      [] { return range(7).shuffle(7, {.reshuffle_each_iteration = false}).repeat(3); }, 21);
  expect_to_resume(
      [] {
        return sample_from_datasets(std::vector{range(4).shuffle(4), range(10, 16).shuffle(6)})
            .repeat(2);
      },
      20);
}

TEST(Order, PositionsHoldTheOrdersOfDatasetsThatFunctionsMake) {
  expect_to_resume(
      [] {
        const auto inner = range(5).shuffle(5, {.seed = 1});
        return range(4).flat_map([inner](int64_t) { return inner; }).repeat(2);
      },
      40);
  for (const int threads : {0, 2}) {
    expect_to_resume(
        [threads] {
          const auto inner = range(5).shuffle(5, {.seed = 1});
          return range(4)
              .interleave([inner](int64_t) { return inner; },
                          {.cycle_length = 2, .num_parallel_calls = threads})
              .repeat(2);
        },
        40);
  }
}

TEST(Order, DoesNotDependOnHowFarAThreadHasReadAhead) {
  const auto make = [](int64_t ahead, int threads) {
    return range(10)
        .shuffle(10, {.seed = 1})
        .repeat()
        .map([](int64_t i) { return i; }, {.num_parallel_calls = threads})
        .prefetch(ahead)
        .take(9)
        .repeat(10);
  };
  const Values expected = all_of(make(0, 0));
  for (int run = 0; run < 5; ++run) {
    EXPECT_EQ(all_of(make(3, 0)), expected);
    EXPECT_EQ(all_of(make(3, 2)), expected);
  }
}

TEST(Order, PassesContinueAfterARestoredOne) {
  const auto make = [] { return range(20).shuffle(20, {.seed = 3}); };
  const auto first = make();
  std::vector<Values> epochs;
  std::string position;
  for (int epoch = 0; epoch < 4; ++epoch) {
    auto pass = first.iterator();
    Values values = take(pass, 5);
    if (epoch == 2) position = pass.save();
    for (const int64_t value : take(pass)) values.push_back(value);
    epochs.push_back(values);
  }
  const auto second = make();
  auto resumed = second.iterator();
  resumed.restore(position);
  EXPECT_EQ(take(resumed), Values(epochs[2].begin() + 5, epochs[2].end()));
  EXPECT_EQ(all_of(second), epochs[3]);
}

TEST(Order, TheFirstPassOfRepeatEqualsThatWithoutIt) {
  const auto make = [] { return range(20).shuffle(20, {.seed = 3}); };
  const Values twice = all_of(make().repeat(2));
  EXPECT_EQ(Values(twice.begin(), twice.begin() + 20), all_of(make()));
  EXPECT_NE(Values(twice.begin() + 20, twice.end()), all_of(make()));
}

// Splits the elements of a dataset into orders of 20.
void append_orders(const Values& values, std::vector<Values>& orders) {
  ASSERT_EQ(values.size() % 20, 0U);
  for (auto at = values.begin(); at != values.end(); at += 20) orders.emplace_back(at, at + 20);
}

void expect_all_different(std::vector<Values> orders) {
  std::sort(orders.begin(), orders.end());
  const auto twice = std::adjacent_find(orders.begin(), orders.end());
  EXPECT_TRUE(twice == orders.end()) << "an order recurred";
  for (Values& order : orders) {
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, all_of(range(20)));
  }
}

std::vector<ShuffleOptions> with_and_without_seed() { return {{.seed = 3}, {}}; }

TEST(Order, EveryPassOfRepeatHasItsOwn) {
  for (const ShuffleOptions& options : with_and_without_seed()) {
    std::vector<Values> orders;
    append_orders(all_of(range(20).shuffle(20, options).repeat(8)), orders);
    ASSERT_EQ(orders.size(), 8U);
    expect_all_different(orders);
  }
}

TEST(Order, EveryBranchOfOneShuffleHasItsOwn) {
  for (const ShuffleOptions& options : with_and_without_seed()) {
    const auto shuffled = range(20).shuffle(20, options);
    std::vector<Values> orders;
    append_orders(all_of(shuffled.concatenate(shuffled).concatenate(shuffled)), orders);
    ASSERT_EQ(orders.size(), 3U);
    expect_all_different(orders);
  }
}

// This covers the same branch, other branches and repetitions.
TEST(Order, NoneRecursInALaterPass) {
  for (const ShuffleOptions& options : with_and_without_seed()) {
    const auto shuffled = range(20).shuffle(20, options);
    const auto branches = shuffled.concatenate(shuffled).concatenate(shuffled);
    const auto repeated = range(20).shuffle(20, options).repeat(5);
    std::vector<Values> of_branches;
    std::vector<Values> of_repeated;
    for (int pass = 0; pass < 20; ++pass) {
      append_orders(all_of(branches), of_branches);
      append_orders(all_of(repeated), of_repeated);
    }
    ASSERT_EQ(of_branches.size(), 60U);
    ASSERT_EQ(of_repeated.size(), 100U);
    expect_all_different(of_branches);
    expect_all_different(of_repeated);
  }
}

TEST(Order, StatsSumOverAllEpochs) {
  auto pass = range(5).map([](int64_t i) { return i; }).repeat(4).iterator();
  take(pass);
  ASSERT_EQ(pass.stats().size(), 1U);
  EXPECT_EQ(pass.stats()[0].calls, 20);
}

TEST(Iterator, CanBeReplacedByTheNextPass) {
  const auto dataset =
      range(1000).map([](int64_t i) { return i + 1; }, {.num_parallel_calls = 2}).prefetch(4);
  auto pass = dataset.iterator();
  for (int epoch = 0; epoch < 20; ++epoch) {
    EXPECT_EQ(take(pass, 3), (Values{1, 2, 3}));
    pass = dataset.iterator();  // while the threads of the old one are running
  }
}

TEST(Iterator, IsRestoredOnlyWhileNew) {
  const auto dataset = range(5).prefetch(1);
  auto pass = dataset.iterator();
  const std::string position = pass.save();
  EXPECT_TUTTI_ERROR(pass.restore(position), ErrorCode::kFailedPrecondition, "already been used");
}

TEST(Dataset, EmptyElementsHaveNoRows) {
  EXPECT_TUTTI_ERROR(from_tensor_slices(std::vector<at::Tensor>{}), ErrorCode::kInvalidArgument,
                     "the element is empty");
  auto pass = from_tensors(std::vector<at::Tensor>{}).unbatch().iterator();
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kInvalidArgument, "the element is empty");
}

TEST(Dataset, SkipOfAllEndsInfiniteDatasetsToo) {
  EXPECT_EQ(range(5).repeat().skip(-1).cardinality(), 0);
  EXPECT_TRUE(all_of(range(5).repeat().skip(-1)).empty());
}

TEST(Dataset, StructsOfTensorsAndMapsAreBatched) {
  struct Pair {
    at::Tensor x;
    at::Tensor y;
  };
  const auto batches = range(4)
                           .map([](int64_t i) {
                             return Pair{at::full({2}, i), at::full({}, i)};
                           })
                           .batch(3);
  EXPECT_EQ(batches.iterator().get_next().x.sizes(), at::IntArrayRef({3, 2}));

  const auto maps = range(4)
                        .map([](int64_t i) {
                          return std::map<std::string, std::string>{{"a", std::to_string(i)}};
                        })
                        .batch(2)
                        .unbatch();
  std::vector<std::string> texts;
  for (auto& each : maps) texts.push_back(each.at("a"));
  EXPECT_EQ(texts, (std::vector<std::string>{"0", "1", "2", "3"}));
}

}  // namespace tutti::data::order_test
