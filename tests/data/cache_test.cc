// SPDX-License-Identifier: Apache-2.0
//
// Tests cache: which passes read the input, damaged files, and positions.

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/dataset.h"

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tutti::data::cache_test {

using Values = std::vector<int64_t>;

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

// The squares of 0 ... n-1; `calls` counts the computed ones.
Dataset<int64_t> squares(int64_t n, const std::shared_ptr<std::atomic<int>>& calls) {
  return range(n).map([calls](int64_t i) {
    ++*calls;
    return i * i;
  });
}

Values wanted(int64_t n) {
  Values values;
  for (int64_t i = 0; i < n; ++i) values.push_back(i * i);
  return values;
}

std::shared_ptr<std::atomic<int>> counter() { return std::make_shared<std::atomic<int>>(0); }

size_t files_in(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// The same tests for both kinds.
class Cache : public ::testing::TestWithParam<bool> {
 protected:
  Dataset<int64_t> cached(const Dataset<int64_t>& dataset) const {
    return GetParam() ? dataset.cache(folder_.path("cache")) : dataset.cache();
  }
  void expect_files(size_t count) const {
    EXPECT_EQ(files_in(folder_.path("")), GetParam() ? count : 0);
  }

  test::TempFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(MemoryAndFile, Cache, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "File" : "Memory"; });

TEST_P(Cache, StoresTheFirstCompletePass) {
  const auto calls = counter();
  const auto dataset = cached(squares(7, calls));
  expect_files(0);
  for (int pass = 0; pass < 3; ++pass) EXPECT_EQ(all_of(dataset), wanted(7));
  EXPECT_EQ(*calls, 7);
  expect_files(1);
  const auto copy = dataset.map([](int64_t i) { return i; });
  EXPECT_EQ(all_of(copy), wanted(7));
  EXPECT_EQ(*calls, 7) << "all passes over the node share it";
  EXPECT_EQ(dataset.cardinality(), 7);
  EXPECT_EQ(cached(range(4)).batch(2).node()->batch_size(), 2);
  EXPECT_EQ(to_text(cached(range(4)).element_spec()), "int64 number");
}

TEST_P(Cache, IsReadByLaterRepetitions) {
  const auto calls = counter();
  Values twice = wanted(5);
  for (const int64_t each : wanted(5)) twice.push_back(each);
  EXPECT_EQ(all_of(cached(squares(5, calls)).repeat(2)), twice);
  EXPECT_EQ(*calls, 5);
}

TEST_P(Cache, AnEmptyPassIsComplete) {
  const auto starts = counter();
  const auto empty = from_generator([starts] {
    ++*starts;
    return []() -> std::optional<int64_t> { return std::nullopt; };
  });
  const auto dataset = cached(empty);
  EXPECT_TRUE(all_of(dataset).empty());
  EXPECT_TRUE(all_of(dataset).empty());
  EXPECT_EQ(*starts, 1);
}

TEST_P(Cache, ADroppedPassDoesNotCount) {
  const auto calls = counter();
  const auto dataset = cached(squares(7, calls));
  {
    auto pass = dataset.iterator();
    for (int i = 0; i < 7; ++i) pass.get_next();  // does not reach the end
    expect_files(1);                              // it has its temporary name
  }
  expect_files(0);
  EXPECT_EQ(all_of(dataset.take(3)), (Values{0, 1, 4}));
  expect_files(0);
  EXPECT_EQ(*calls, 10);
  EXPECT_EQ(all_of(dataset), wanted(7));
  EXPECT_EQ(*calls, 17);
  EXPECT_EQ(all_of(dataset), wanted(7));
  EXPECT_EQ(*calls, 17);
}

TEST_P(Cache, APassWithAnErrorDoesNotCount) {
  const auto fails = std::make_shared<std::atomic<bool>>(true);
  const auto dataset = cached(range(6).map([fails](int64_t i) {
    if (i == 3 && *fails) throw std::out_of_range("three");
    return i * i;
  }));
  {
    auto pass = dataset.iterator();
    for (int i = 0; i < 3; ++i) pass.get_next();
    EXPECT_THROW(pass.next(), std::out_of_range);
    EXPECT_THROW(pass.next(), std::out_of_range) << "the error persists";
  }
  expect_files(0);
  *fails = false;
  EXPECT_EQ(all_of(dataset), wanted(6));
  EXPECT_EQ(all_of(dataset), wanted(6));
}

TEST_P(Cache, ConcurrentPassesDoNotMix) {
  const auto calls = counter();
  const auto dataset = cached(squares(6, calls));
  auto slow = dataset.iterator();
  EXPECT_EQ(slow.get_next(), 0);
  EXPECT_EQ(all_of(dataset), wanted(6));
  auto reader = dataset.iterator();
  EXPECT_EQ(reader.get_next(), 0);
  for (int64_t i = 1; i < 6; ++i) EXPECT_EQ(slow.get_next(), i * i);
  EXPECT_FALSE(slow.next().has_value());
  EXPECT_FALSE(slow.next().has_value());
  for (int64_t i = 1; i < 6; ++i) EXPECT_EQ(reader.get_next(), i * i);
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(*calls, 12);
  expect_files(1);
}

TEST_P(Cache, SupportsManyThreads) {
  const auto dataset = cached(squares(200, counter()));
  std::atomic<int> right{0};
  {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int pass = 0; pass < 5; ++pass) right += all_of(dataset) == wanted(200) ? 1 : 0;
      });
    }
    for (std::thread& each : threads) each.join();
  }
  EXPECT_EQ(right, 20);
  expect_files(1);
}

TEST_P(Cache, PositionsResumeInTheFirstPassAndInLaterOnes) {
  for (const bool filled : {false, true}) {
    for (size_t at = 0; at <= 7; ++at) {
      std::filesystem::remove(folder_.path("cache"));
      const auto calls = counter();
      const auto dataset = cached(squares(7, calls));
      if (filled) all_of(dataset);
      auto pass = dataset.iterator();
      for (size_t i = 0; i < at; ++i) pass.get_next();
      const std::string position = pass.save();
      auto resumed = dataset.iterator();
      resumed.restore(position);
      for (size_t i = at; i < 7; ++i) EXPECT_EQ(resumed.get_next(), wanted(7)[i]);
      EXPECT_FALSE(resumed.next().has_value());
      if (!filled) {
        expect_files(1);  // only the temporary one: a restored pass does not fill the cache
      }
      for (size_t i = at; i < 7; ++i) EXPECT_EQ(pass.get_next(), wanted(7)[i]);
      EXPECT_FALSE(pass.next().has_value());
      *calls = 0;
      EXPECT_EQ(all_of(dataset), wanted(7));
      EXPECT_EQ(*calls, 0) << "the pass that was saved went on filling";
    }
  }
}

TEST_P(Cache, RebuildsALostCacheFromAPosition) {
  const auto dataset = cached(squares(7, counter()));
  all_of(dataset);
  auto pass = dataset.iterator();
  for (int i = 0; i < 4; ++i) pass.get_next();
  const std::string position = pass.save();
  std::filesystem::remove(folder_.path("cache"));
  const auto calls = counter();
  const auto fresh = cached(squares(7, calls));
  auto resumed = fresh.iterator();
  resumed.restore(position);
  for (int64_t i = 4; i < 7; ++i) EXPECT_EQ(resumed.get_next(), i * i);
  EXPECT_FALSE(resumed.next().has_value());
  EXPECT_EQ(all_of(fresh), wanted(7));
  EXPECT_EQ(*calls, 7);
}

TEST_P(Cache, ErrorsInThreadsReachTheConsumer) {
  const auto bad = range(20).map(
      [](int64_t i) {
        if (i == 5) throw std::out_of_range("five");
        return i;
      },
      {.num_parallel_calls = 3});
  auto pass = cached(bad).prefetch(2).iterator();
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(pass.get_next(), i);
  EXPECT_THROW(pass.next(), std::out_of_range);
  EXPECT_THROW(pass.next(), std::out_of_range);
}

// ---- files only -------------------------------------------------------------------

TEST(FileCache, IsUsedByLaterPrograms) {
  const test::TempFolder folder;
  const std::string path = folder.path("cache");
  const auto calls = counter();
  all_of(squares(5, calls).cache(path));
  EXPECT_EQ(all_of(squares(5, calls).cache(path)), wanted(5)) << "a new node, the same file";
  EXPECT_EQ(*calls, 5);
  EXPECT_TUTTI_ERROR(range(3).cache(""), ErrorCode::kInvalidArgument, "the path is empty");
  EXPECT_TUTTI_ERROR(all_of(range(3).cache(folder.path("no/such/folder"))), ErrorCode::kNotFound,
                     "Dataset::cache", "no/such/folder");
}

TEST(FileCache, KeepsEveryKindOfLeaf) {
  const test::TempFolder folder;
  const auto dataset =
      range(3)
          .map([](int64_t i) {
            return std::tuple(at::full({i, 2}, 0.5), i == 1, 2.5F, std::string("a\0b", 3),
                              std::vector<std::string>{"x", ""}, std::optional<int64_t>(i),
                              at::Tensor());
          })
          .cache(folder.path("cache"));
  all_of(dataset);
  int64_t i = 0;
  for (const auto& [tensor, flag, number, text, strings, optional, undefined] : dataset) {
    EXPECT_TRUE(at::equal(tensor, at::full({i, 2}, 0.5)));
    EXPECT_EQ(flag, i == 1);
    EXPECT_EQ(number, 2.5F);
    EXPECT_EQ(text, std::string("a\0b", 3));
    EXPECT_EQ(strings, (std::vector<std::string>{"x", ""}));
    EXPECT_EQ(optional, i);
    EXPECT_FALSE(undefined.defined());
    ++i;
  }
  EXPECT_EQ(i, 3);
}

TEST(FileCache, DetectsAllDamage) {
  const test::TempFolder folder;
  const std::string path = folder.path("cache");
  const auto dataset = range(3).cache(path);
  all_of(dataset);
  const std::string whole = test::read_file(path);
  ASSERT_EQ(whole.substr(0, 14), "tutti cache 1\n");
  for (size_t size = 0; size < whole.size(); ++size) {
    test::write_file(path, whole.substr(0, size));
    ASSERT_TRUE(test::throws_error([&] { all_of(dataset); }, ErrorCode::kDataLoss,
                                   {path, "at byte", "Delete the file"}))
        << size << " bytes";
  }
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x20);
    test::write_file(path, damaged);
    ASSERT_TRUE(test::throws_error([&] { all_of(dataset); }, ErrorCode::kDataLoss,
                                   {path, "at byte", "Delete the file"}))
        << "byte " << byte;
  }
  test::write_file(path, whole + "x");
  EXPECT_TUTTI_ERROR(all_of(dataset), ErrorCode::kDataLoss, "end marker is in the wrong place");
  // The error persists, and the elements before it are correct.
  std::string damaged = whole;
  damaged[damaged.size() - 30] ^= 1;
  test::write_file(path, damaged);
  auto pass = dataset.iterator();
  EXPECT_EQ(pass.get_next(), 0);
  EXPECT_EQ(pass.get_next(), 1);
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kDataLoss, path);
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kDataLoss, path);
  test::write_file(path, whole);
  EXPECT_EQ(all_of(dataset), (Values{0, 1, 2}));
}

TEST(FileCache, RejectsTheFileOfADifferentPipeline) {
  const test::TempFolder folder;
  const std::string path = folder.path("cache");
  all_of(range(3).cache(path));
  EXPECT_TUTTI_ERROR(all_of(squares(3, counter()).cache(path)), ErrorCode::kFailedPrecondition,
                     path, "a different pipeline", "Delete it");
}

}  // namespace tutti::data::cache_test
