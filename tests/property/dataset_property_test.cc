// SPDX-License-Identifier: Apache-2.0
//
// Tests random pipelines read by one iterator: their elements, positions, and repeatability.

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "tests/property/check_property.h"
#include "tests/property/pipelines.h"

namespace tutti::property::dataset_property_test {

constexpr int kCases = 150;

template <class T>
std::vector<Rows> rest_of(data::Iterator<T>& pass) {
  std::vector<Rows> elements;
  while (const auto element = pass.next()) elements.push_back(rows_of(*element));
  RC_ASSERT(!pass.next());  // stays at the end
  return elements;
}

template <class T>
std::vector<Rows> read(const data::Dataset<T>& dataset) {
  auto pass = dataset.iterator();
  return rest_of(pass);
}

std::vector<Rows> read(const AnyDataset& dataset) {
  return std::visit([](const auto& each) { return read(each); }, dataset);
}

std::vector<Rows> from(const std::vector<Rows>& elements, size_t begin) {
  return {elements.begin() + static_cast<std::ptrdiff_t>(begin), elements.end()};
}

rc::Gen<Pipeline> any_pipeline() { return rc::gen::oneOf(row_pipelines(), batched_pipelines()); }

size_t place_in(const std::vector<Rows>& elements) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<size_t>(0, elements.size() + 1));
}

// The model takes the orders of shuffles from the library, so they are checked here.
TEST(DatasetProperty, ShufflesDrawEachElementOutOfTheBuffer) {
  check_property(kCases, [] {
    const auto n = *rc::gen::inRange<size_t>(0, 60);
    const auto buffer = *rc::gen::inRange<size_t>(1, 70);
    const auto epoch = *rc::gen::inRange(0, 3);
    const auto reshuffle = *rc::gen::arbitrary<bool>();
    const std::vector<size_t> order =
        shuffled_order(n, static_cast<int64_t>(buffer), 7, epoch, reshuffle);
    std::vector<bool> seen(n);
    RC_ASSERT(order.size() == n);
    for (size_t i = 0; i < n; ++i) {
      RC_ASSERT(order[i] < std::min(n, i + buffer));
      RC_ASSERT(!seen[order[i]]);
      seen[order[i]] = true;
    }
  });
}

TEST(DatasetProperty, PipelinesMatchTheModel) {
  check_property(2 * kCases, [] {
    const Pipeline pipeline = *any_pipeline();
    RC_ASSERT(read(Builder(pipeline).build()) == model_of(pipeline).elements);
  });
}

TEST(DatasetProperty, KnownCardinalitiesAreExact) {
  check_property(kCases, [] {
    const Pipeline pipeline = *any_pipeline();
    const int64_t said =
        std::visit([](const auto& each) { return each.cardinality(); }, Builder(pipeline).build());
    RC_ASSERT(said != data::kInfinite);
    if (said != data::kUnknown) {
      RC_ASSERT(said == static_cast<int64_t>(model_of(pipeline).elements.size()));
    }
  });
}

TEST(DatasetProperty, PositionsResumeIdentically) {
  check_property(2 * kCases, [] {
    const Pipeline pipeline = *any_pipeline();
    const std::vector<Rows> expected = model_of(pipeline).elements;
    const size_t at = place_in(expected);
    const Builder builder(pipeline);
    const auto check = [&](const auto& dataset) {
      auto pass = dataset.iterator();
      for (size_t i = 0; i < at; ++i) RC_ASSERT(rows_of(pass.get_next()) == expected[i]);
      const std::string position = pass.save();
      const std::string again = pass.save();

      auto first = dataset.iterator();
      first.restore(position);
      const std::string of_restored = first.save();
      RC_ASSERT(rest_of(first) == from(expected, at));
      auto second = dataset.iterator();
      second.restore(again);
      RC_ASSERT(rest_of(second) == from(expected, at));
      auto third = dataset.iterator();
      third.restore(of_restored);
      RC_ASSERT(rest_of(third) == from(expected, at));

      RC_ASSERT(rest_of(pass) == from(expected, at));  // saving did not disturb it
    };
    std::visit(check, builder.build());
    // This is what a different process would do.
    std::visit(
        [&](const auto& dataset) {
          auto pass = dataset.iterator();
          for (size_t i = 0; i < at; ++i) pass.get_next();
          const std::string position = pass.save();
          auto resumed = std::get<std::decay_t<decltype(dataset)>>(builder.build()).iterator();
          resumed.restore(position);
          RC_ASSERT(rest_of(resumed) == from(expected, at));
        },
        builder.build());
  });
}

TEST(DatasetProperty, PositionsOfUnorderedPipelinesKeepEveryElement) {
  check_property(kCases, [] {
    const Pipeline pipeline = *order_free_pipelines();
    const std::vector<Rows> expected = model_of(pipeline).elements;
    const size_t at = place_in(expected);
    const Builder builder(pipeline);
    std::visit(
        [&](const auto& dataset) {
          auto pass = dataset.iterator();
          std::vector<Rows> before;
          for (size_t i = 0; i < at; ++i) before.push_back(rows_of(pass.get_next()));
          const std::string position = pass.save();
          std::vector<Rows> resumed = before;
          auto other = dataset.iterator();
          other.restore(position);
          for (const Rows& rows : rest_of(other)) resumed.push_back(rows);
          RC_ASSERT(sorted(all_rows(resumed)) == sorted(all_rows(expected)));
          for (const Rows& rows : rest_of(pass)) before.push_back(rows);
          RC_ASSERT(sorted(all_rows(before)) == sorted(all_rows(expected)));
        },
        builder.build({.unordered = true}));
  });
}

TEST(DatasetProperty, SeedsDetermineEverythingAndPassesArePermutations) {
  check_property(kCases, [] {
    const Pipeline pipeline = *order_free_pipelines();
    const Builder builder(pipeline);
    const AnyDataset one = builder.build();
    const AnyDataset two = builder.build();
    const std::vector<Rows> first = read(one);
    RC_ASSERT(read(two) == first);
    const std::vector<Rows> later = read(one);
    RC_ASSERT(sorted(all_rows(later)) == sorted(all_rows(first)));
    RC_ASSERT(read(two) == later);
  });
}

}  // namespace tutti::property::dataset_property_test
