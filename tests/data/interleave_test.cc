// SPDX-License-Identifier: Apache-2.0
//
// Tests interleave: the order with and without threads, errors, dropping, positions.

#include <algorithm>
#include <atomic>
#include <deque>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/dataset.h"

#include "tests/support/expect_error.h"

namespace tutti::data::interleave_test {

using Values = std::vector<int64_t>;

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

// Dataset i has lengths[i] elements: 100 * i, 100 * i + 1, ...
Dataset<int64_t> pipeline(const Values& lengths, const InterleaveOptions& options) {
  return range(static_cast<int64_t>(lengths.size()))
      .interleave(
          [lengths](int64_t i) {
            return range(100 * i, 100 * i + lengths[static_cast<size_t>(i)]);
          },
          options);
}

// Implements the rule plainly: a slot without a dataset gets the next one when its turn comes; a
// turn ends after `block` elements, or with the dataset.
Values expected(const Values& lengths, size_t cycle, int64_t block) {
  std::vector<std::deque<int64_t>> slots(cycle);
  std::vector<bool> filled(cycle, false);
  size_t next = 0;
  Values order;
  for (size_t turn = 0; true; turn = (turn + 1) % cycle) {
    if (!filled[turn] && next < lengths.size()) {
      filled[turn] = true;
      for (int64_t k = 0; k < lengths[next]; ++k) {
        slots[turn].push_back(100 * static_cast<int64_t>(next) + k);
      }
      ++next;
    }
    int64_t left = block;
    while (left > 0 && !slots[turn].empty()) {
      order.push_back(slots[turn].front());
      slots[turn].pop_front();
      --left;
    }
    // The end is only detected by requesting one more element.
    if (left > 0) filled[turn] = false;
    if (next == lengths.size() && std::count(filled.begin(), filled.end(), true) == 0) break;
  }
  return order;
}

TEST(Interleave, HasTheDocumentedOrder) {
  const auto dataset = range(1, 6).interleave([](int64_t x) { return from_tensors(x).repeat(6); },
                                              {.cycle_length = 2, .block_length = 4});
  EXPECT_EQ(all_of(dataset), (Values{1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3,
                                     3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5}));
  // Cycle 2, lengths 1, 3, 2: 0; 100; slot 0 ends, slot 1 gives 101, slot 0 gets dataset 2.
  EXPECT_EQ(all_of(pipeline({1, 3, 2}, {.cycle_length = 2})), (Values{0, 100, 101, 200, 102, 201}));
  EXPECT_EQ(all_of(pipeline({2, 3}, {.cycle_length = 1})), (Values{0, 1, 100, 101, 102}));
}

TEST(Interleave, HasTheSameOrderWithThreads) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    Values lengths(random() % 9);
    for (int64_t& length : lengths) length = static_cast<int64_t>(random() % 6);
    const auto cycle = static_cast<int64_t>(1 + random() % 4);
    const auto block = static_cast<int64_t>(1 + random() % 3);
    const Values wanted = expected(lengths, static_cast<size_t>(cycle), block);
    for (const int threads : {0, 1, 3, kAutoParallel}) {
      ASSERT_EQ(all_of(pipeline(
                    lengths,
                    {.cycle_length = cycle, .block_length = block, .num_parallel_calls = threads})),
                wanted)
          << "round " << round << ", cycle " << cycle << ", block " << block << ", threads "
          << threads;
    }
    Values any = all_of(pipeline(
        lengths,
        {.cycle_length = cycle, .block_length = block, .num_parallel_calls = 3, .ordered = false}));
    Values sorted = wanted;
    std::sort(any.begin(), any.end());
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(any, sorted) << "round " << round;
  }
}

TEST(Interleave, ThreadsDoNotChangeTheOrdersOfShuffledDatasets) {
  const auto order = [](int threads) {
    const auto inner = range(20).shuffle(20, {.seed = 4});  // a different order in each pass
    return all_of(range(12).interleave([inner](int64_t) { return inner; },
                                       {.cycle_length = 3, .num_parallel_calls = threads}));
  };
  const Values wanted = order(0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order(4), wanted);
}

TEST(Interleave, UnorderedDoesNotWaitForASlowDataset) {
  // Dataset 0 yields nothing before all elements of the others have been delivered.
  std::atomic<bool> released{false};
  const auto dataset = range(3).interleave(
      [&released](int64_t i) {
        return range(10 * i, 10 * i + 5).map([&released, i](int64_t x) {
          while (i == 0 && !released) std::this_thread::yield();
          return x;
        });
      },
      {.cycle_length = 3, .num_parallel_calls = 3, .ordered = false});
  auto pass = dataset.iterator();
  Values others;
  for (int i = 0; i < 10; ++i) others.push_back(pass.get_next());
  released = true;
  std::sort(others.begin(), others.end());
  EXPECT_EQ(others, (Values{10, 11, 12, 13, 14, 20, 21, 22, 23, 24}));
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(pass.get_next(), i);
  EXPECT_FALSE(pass.next().has_value());
}

TEST(Interleave, ErrorsReachTheConsumerAndStay) {
  for (const int threads : {0, 1, 3}) {
    const InterleaveOptions options{.cycle_length = 2, .num_parallel_calls = threads};
    const auto in_function = range(10).interleave(
        [](int64_t i) {
          if (i == 2) throw std::out_of_range("two");
          return range(10 * i, 10 * i + 2);
        },
        options);
    const auto in_element = range(10).interleave(
        [](int64_t i) {
          return range(10 * i, 10 * i + 3).map([](int64_t x) {
            if (x == 2) throw std::out_of_range("two");
            return x;
          });
        },
        options);
    const auto in_input =
        range(10)
            .map([](int64_t i) {
              if (i == 2) throw std::out_of_range("two");
              return i;
            })
            .interleave([](int64_t i) { return range(10 * i, 10 * i + 2); }, options);
    for (const auto& dataset : {in_function, in_element, in_input}) {
      auto pass = dataset.iterator();
      for (const int64_t wanted : {0, 10, 1, 11}) EXPECT_EQ(pass.get_next(), wanted);
      for (int again = 0; again < 3; ++again) EXPECT_THROW(pass.next(), std::out_of_range);
      EXPECT_THROW(pass.save(), std::out_of_range);
    }
  }
  const auto unordered = range(10).interleave(
      [](int64_t i) {
        if (i == 2) throw std::out_of_range("two");
        return range(i);
      },
      {.cycle_length = 2, .num_parallel_calls = 3, .ordered = false});
  auto pass = unordered.iterator();
  EXPECT_THROW(
      {
        while (pass.next()) {
        }
      },
      std::out_of_range);
  EXPECT_THROW(pass.next(), std::out_of_range);
}

TEST(Interleave, DroppingAPassHalfwayStopsItsThreads) {
  for (const bool ordered : {true, false}) {
    std::atomic<int> calls{0};
    const auto dataset = range(1'000'000).interleave(
        [&calls](int64_t i) {
          return range(i, i + 1000).map([&calls](int64_t x) {
            ++calls;
            return x;
          });
        },
        {.cycle_length = 4, .num_parallel_calls = 3, .ordered = ordered});
    for (int elements = 0; elements < 6; ++elements) {
      calls = 0;
      {
        auto pass = dataset.iterator();
        for (int i = 0; i < elements; ++i) pass.get_next();
      }
      const int after = calls.load();  // the threads have ended
      EXPECT_LE(after, 3 * (4 + 3) + elements) << "the buffers bound the calls";
    }
  }
}

// Saves after each number of elements and compares the rest.
void expect_resumable(const Dataset<int64_t>& dataset, const Dataset<int64_t>& other) {
  const Values whole = all_of(dataset);
  for (size_t at = 0; at <= whole.size(); ++at) {
    auto pass = dataset.iterator();
    for (size_t i = 0; i < at; ++i) ASSERT_EQ(pass.get_next(), whole[i]);
    const std::string position = pass.save();
    for (const auto& each : {dataset, other}) {
      auto resumed = each.iterator();
      resumed.restore(position);
      const std::string again = resumed.save();
      auto twice = each.iterator();
      twice.restore(again);
      for (size_t i = at; i < whole.size(); ++i) {
        ASSERT_EQ(resumed.next(), whole[i]) << "after " << at;
        ASSERT_EQ(twice.next(), whole[i]) << "after " << at;
      }
      EXPECT_FALSE(resumed.next().has_value());
      EXPECT_FALSE(twice.next().has_value());
    }
    for (size_t i = at; i < whole.size(); ++i) ASSERT_EQ(pass.next(), whole[i]);
    EXPECT_FALSE(pass.next().has_value());
  }
}

TEST(Interleave, PositionsResumeWithTheSameElements) {
  const Values lengths = {3, 0, 5, 1, 4, 2};
  for (const int64_t cycle : {1, 2, 3, 8}) {
    for (const int64_t block : {1, 2}) {
      const auto plain = pipeline(lengths, {.cycle_length = cycle, .block_length = block});
      const auto threads = pipeline(
          lengths, {.cycle_length = cycle, .block_length = block, .num_parallel_calls = 2});
      expect_resumable(plain, threads);
      expect_resumable(threads, plain);
    }
  }
}

TEST(Interleave, UnorderedPositionsKeepTheMultiset) {
  const Values lengths = {3, 0, 5, 1, 4, 2};
  const auto dataset =
      pipeline(lengths, {.cycle_length = 2, .num_parallel_calls = 3, .ordered = false});
  Values wanted = expected(lengths, 2, 1);
  std::sort(wanted.begin(), wanted.end());
  for (size_t at = 0; at <= wanted.size(); ++at) {
    Values seen;
    auto pass = dataset.iterator();
    for (size_t i = 0; i < at; ++i) seen.push_back(pass.get_next());
    auto resumed = dataset.iterator();
    resumed.restore(pass.save());
    while (const auto value = resumed.next()) seen.push_back(*value);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, wanted);
  }
}

TEST(Interleave, RejectsDamagedAndForeignPositions) {
  const auto dataset = pipeline({3, 2, 4}, {.cycle_length = 2});
  auto pass = dataset.iterator();
  for (int i = 0; i < 3; ++i) pass.get_next();
  const std::string position = pass.save();
  for (size_t size = 0; size < position.size(); ++size) {
    auto fresh = dataset.iterator();
    EXPECT_TUTTI_ERROR(fresh.restore(position.substr(0, size)), ErrorCode::kDataLoss);
  }
  auto other = pipeline({3, 2, 4}, {.cycle_length = 3}).iterator();
  EXPECT_TUTTI_ERROR(other.restore(position), ErrorCode::kDataLoss, "cycle_length of 2", "3");
}

TEST(Interleave, RejectsInvalidOptions) {
  const auto fn = [](int64_t i) { return range(i); };
  EXPECT_TUTTI_ERROR(range(3).interleave(fn, {.cycle_length = 0}), ErrorCode::kInvalidArgument,
                     "cycle_length is 0");
  EXPECT_TUTTI_ERROR(range(3).interleave(fn, {.block_length = 0}), ErrorCode::kInvalidArgument,
                     "block_length is 0");
  EXPECT_TUTTI_ERROR(range(3).interleave(fn, {.num_parallel_calls = -2}),
                     ErrorCode::kInvalidArgument, "num_parallel_calls is -2");
  EXPECT_EQ(range(0).interleave(fn).cardinality(), 0);
  EXPECT_EQ(range(3).interleave(fn).cardinality(), kUnknown);
  EXPECT_TRUE(all_of(range(0).interleave(fn, {.num_parallel_calls = 2})).empty());
  const NodePtr inner = range(3).interleave(fn).node()->traits().expand(to_element<int64_t>(2));
  EXPECT_EQ(all_of(Dataset<int64_t>(inner)), (Values{0, 1}));
}

TEST(Interleave, StatsCountTheFunction) {
  auto pass = pipeline({2, 2, 2}, {.cycle_length = 2, .num_parallel_calls = 2}).iterator();
  while (pass.next()) {
  }
  ASSERT_EQ(pass.stats().size(), 1U);
  EXPECT_EQ(pass.stats()[0].stage, "interleave");
  EXPECT_EQ(pass.stats()[0].calls, 3);
}

}  // namespace tutti::data::interleave_test
