// SPDX-License-Identifier: Apache-2.0
// Tests padded_batch and rebatch.

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/dataset.h"

#include "tests/support/expect_error.h"

namespace tutti::data::padded_batch_test {

template <class T>
std::vector<T> all_of(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

// Row i holds i + 1 times the number i.
Dataset<at::Tensor> triangle(int64_t rows) {
  return range(rows).map([](int64_t i) { return at::full({i + 1}, i, at::kLong); });
}

at::Tensor table(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(at::tensor(row, at::kLong));
  return at::stack(tensors);
}

TEST(PaddedBatch, PadsToTheLargestOfTheBatch) {
  const auto batches = all_of(triangle(5).padded_batch(2));
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_TRUE(at::equal(batches[0], table({{0, 0}, {1, 1}})));
  EXPECT_TRUE(at::equal(batches[1], table({{2, 2, 2, 0}, {3, 3, 3, 3}})));
  EXPECT_TRUE(at::equal(batches[2], table({{4, 4, 4, 4, 4}})));
  EXPECT_EQ(all_of(triangle(5).padded_batch(2, {.drop_remainder = true})).size(), 2U);
  EXPECT_EQ(triangle(5).padded_batch(2).cardinality(), 3);
  EXPECT_EQ(triangle(5).padded_batch(2, {.drop_remainder = true}).cardinality(), 2);
}

TEST(PaddedBatch, PadsEveryDimensionOfAnyLayout) {
  const std::vector<std::pair<int64_t, int64_t>> shapes = {{2, 3}, {4, 1}, {0, 2}, {3, 3}};
  const auto make = [shapes](int64_t i) {
    const auto [rows, columns] = shapes[static_cast<size_t>(i)];
    return at::arange(rows * columns, at::kDouble).view({columns, rows}).t();  // not contiguous
  };
  const auto batches = all_of(range(4).map(make).padded_batch(4, {.padding_values = {-1.5}}));
  ASSERT_EQ(batches.size(), 1U);
  ASSERT_EQ(batches[0].sizes(), (std::vector<int64_t>{4, 4, 3}));
  for (int64_t i = 0; i < 4; ++i) {
    const at::Tensor one = make(i);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = 0; c < 3; ++c) {
        const bool inside = r < one.size(0) && c < one.size(1);
        EXPECT_EQ(batches[0][i][r][c].item<double>(), inside ? one[r][c].item<double>() : -1.5);
      }
    }
  }
}

TEST(PaddedBatch, TakesShapesAndValuesForEachLeaf) {
  const auto dataset = range(3).map([](int64_t i) {
    return std::tuple(at::full({i}, 1.0F), at::full({i, 2}, i, at::kLong), i,
                      "s" + std::to_string(i), at::full({}, i));
  });
  const auto batches = all_of(dataset.padded_batch(
      3, {.padded_shapes = {{4}, {-1, 3}, {}, {}, {}}, .padding_values = {0.5, -1, 0, 0, 0}}));
  ASSERT_EQ(batches.size(), 1U);
  const auto& [floats, longs, numbers, strings, scalars] = batches[0];
  const at::Tensor wanted = at::full({3, 4}, 0.5F);
  for (int64_t i = 0; i < 3; ++i) wanted[i].narrow(0, 0, i).fill_(1);
  EXPECT_TRUE(at::equal(floats, wanted));
  ASSERT_EQ(longs.sizes(), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_TRUE(at::equal(longs[2], table({{2, 2, -1}, {2, 2, -1}})));
  EXPECT_TRUE(at::equal(longs[1], table({{1, 1, -1}, {-1, -1, -1}})));
  EXPECT_TRUE(at::equal(numbers, at::arange(3, at::kLong)));
  EXPECT_EQ(strings, (std::vector<std::string>{"s0", "s1", "s2"}));
  EXPECT_EQ(scalars.sizes(), (std::vector<int64_t>{3}));
  const auto all = all_of(dataset.padded_batch(3, {.padding_values = {7}}));
  EXPECT_EQ(std::get<0>(all[0])[0][0].item<float>(), 7) << "one value for all leaves";
}

TEST(PaddedBatch, NamesWhatDoesNotFit) {
  EXPECT_TUTTI_ERROR(triangle(3).padded_batch(0), ErrorCode::kInvalidArgument,
                     "Dataset::padded_batch", "the size is 0");
  EXPECT_TUTTI_ERROR(triangle(3).padded_batch(2, {.padded_shapes = {{-2}}}),
                     ErrorCode::kInvalidArgument, "[-2]");
  EXPECT_TUTTI_ERROR(all_of(triangle(4).padded_batch(4, {.padded_shapes = {{2}}})),
                     ErrorCode::kInvalidArgument, "leaf 0 of element 2", "int64[3]", "[2]");
  EXPECT_TUTTI_ERROR(all_of(triangle(4).padded_batch(4, {.padded_shapes = {{-1, 2}}})),
                     ErrorCode::kInvalidArgument, "leaf 0 of element 0", "[-1, 2]",
                     "a different number of dimensions");
  EXPECT_TUTTI_ERROR(all_of(triangle(4).padded_batch(4, {.padded_shapes = {{2}, {2}}})),
                     ErrorCode::kInvalidArgument, "2 padded_shapes", "1 leaves");
  EXPECT_TUTTI_ERROR(zip(range(2), range(2)).padded_batch(4, {.padded_shapes = {{}}}),
                     ErrorCode::kInvalidArgument, "1 padded_shapes", "2 leaves");
  EXPECT_TUTTI_ERROR(all_of(triangle(4).padded_batch(4, {.padding_values = {1, 2}})),
                     ErrorCode::kInvalidArgument, "2 padding_values");
  EXPECT_TUTTI_ERROR(all_of(triangle(4).padded_batch(4, {.padding_values = {0.5}})),
                     ErrorCode::kInvalidArgument, "leaf 0", "padding value 0.5");
  EXPECT_TUTTI_ERROR(all_of(range(2).padded_batch(2, {.padded_shapes = {{3}}})),
                     ErrorCode::kInvalidArgument, "is not a tensor", "[3]");
  const auto ranks = range(2).map([](int64_t i) {
    return i == 0 ? at::ones({2}) : at::ones({2, 2});
  });
  EXPECT_TUTTI_ERROR(all_of(ranks.padded_batch(2)), ErrorCode::kInvalidArgument,
                     "leaf 0 of element 1", "float32[2, 2]", "float32[2]");
  const auto dtypes =
      range(2).map([](int64_t i) { return at::ones({2}, i == 0 ? at::kFloat : at::kLong); });
  EXPECT_TUTTI_ERROR(all_of(dtypes.padded_batch(2)), ErrorCode::kInvalidArgument,
                     "leaf 0 of element 1", "one dtype");
  const auto undefined = range(2).map([](int64_t) { return at::Tensor(); });
  EXPECT_TUTTI_ERROR(all_of(undefined.padded_batch(2)), ErrorCode::kInvalidArgument,
                     "undefined tensor");
  const auto optionals = range(2).map(
      [](int64_t i) { return i == 0 ? std::optional<at::Tensor>(at::ones({1})) : std::nullopt; });
  EXPECT_TUTTI_ERROR(all_of(optionals.padded_batch(2)), ErrorCode::kInvalidArgument, "element 1",
                     "differs from the first in its lengths");
  const auto strings = range(2).map([](int64_t) { return std::vector<std::string>{"a"}; });
  EXPECT_TUTTI_ERROR(all_of(strings.padded_batch(2)), ErrorCode::kInvalidArgument,
                     "already a vector of strings");
}

TEST(PaddedBatch, SpecShowsWhatIsKnown) {
  const auto rows = zip(from_tensor_slices(at::ones({6, 2, 3})), range(6));
  EXPECT_EQ(to_text(rows.padded_batch(2).element_spec()), "(float32[2, 2, 3], int64[2])");
  EXPECT_EQ(to_text(rows.padded_batch(4).element_spec()), "(float32[-1, 2, 3], int64[-1])");
  EXPECT_EQ(to_text(rows.padded_batch(4, {.padded_shapes = {{-1, 5}, {}}, .drop_remainder = true})
                        .element_spec()),
            "(float32[4, 2, 5], int64[4])");
  EXPECT_EQ(rows.padded_batch(4).node()->batch_size(), 4);
}

TEST(PaddedBatch, PositionsResumeWithTheSameBatches) {
  const auto dataset = triangle(11).padded_batch(3);
  const auto whole = all_of(dataset);
  for (size_t at = 0; at <= whole.size(); ++at) {
    auto pass = dataset.iterator();
    for (size_t i = 0; i < at; ++i) pass.get_next();
    auto resumed = dataset.iterator();
    resumed.restore(pass.save());
    for (size_t i = at; i < whole.size(); ++i) {
      EXPECT_TRUE(at::equal(resumed.get_next(), whole[i]));
      EXPECT_TRUE(at::equal(pass.get_next(), whole[i]));
    }
    EXPECT_FALSE(resumed.next().has_value());
  }
  EXPECT_TRUE(at::equal(all_of(dataset.skip(2))[0], whole[2]));
}

TEST(PaddedBatch, ErrorsOfTheInputReachTheConsumer) {
  const auto bad = range(9).map(
      [](int64_t i) {
        if (i == 4) throw std::out_of_range("four");
        return at::ones({i});
      },
      {.num_parallel_calls = 2});
  auto pass = bad.padded_batch(3).iterator();
  EXPECT_EQ(pass.get_next().size(1), 2);
  EXPECT_THROW(pass.next(), std::out_of_range);
  EXPECT_THROW(pass.next(), std::out_of_range);
}

// ---- rebatch ----------------------------------------------------------------------

std::vector<std::vector<int64_t>> rows_of(const Dataset<at::Tensor>& dataset) {
  std::vector<std::vector<int64_t>> all;
  for (const at::Tensor& batch : dataset) {
    const at::Tensor flat = batch.contiguous();
    all.emplace_back(flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel());
  }
  return all;
}

TEST(Rebatch, CutsRowsAcrossBatches) {
  using Rows = std::vector<std::vector<int64_t>>;
  const auto batches = range(8).batch(3);
  EXPECT_EQ(rows_of(batches.rebatch(4)), (Rows{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(rows_of(batches.rebatch(5)), (Rows{{0, 1, 2, 3, 4}, {5, 6, 7}}));
  EXPECT_EQ(rows_of(batches.rebatch(5, {.drop_remainder = true})), (Rows{{0, 1, 2, 3, 4}}));
  EXPECT_EQ(rows_of(batches.rebatch({2, 1})), (Rows{{0, 1}, {2}, {3, 4}, {5}, {6, 7}}));
  EXPECT_EQ(rows_of(batches.rebatch({4, 3}, {.drop_remainder = true})),
            (Rows{{0, 1, 2, 3}, {4, 5, 6}}));
  EXPECT_TUTTI_ERROR(batches.rebatch(0), ErrorCode::kInvalidArgument, "Dataset::rebatch");
  EXPECT_TUTTI_ERROR(batches.rebatch(-1), ErrorCode::kInvalidArgument, "a size is -1");
}

// ---- elements ---------------------------------------------------------------------

TEST(Element, MapsMayHoldAnything) {
  struct Item {
    std::map<std::string, std::vector<int64_t>> lists;
    std::map<std::string, std::map<std::string, std::optional<int64_t>>> deep;
    std::unordered_map<std::string, std::pair<std::vector<std::string>, std::vector<double>>> both;
    int64_t last = 0;
  };
  const Item item{{{"a", {1, 2, 3}}, {"", {}}, {"3:x ", {4}}},
                  {{"p", {{"q", 5}, {"r", std::nullopt}}}, {"empty", {}}},
                  {{"z", {{"s", "t"}, {0.5}}}, {"y", {{}, {}}}},
                  9};
  const Item back = from_element<Item>(to_element(item));
  EXPECT_EQ(back.lists, item.lists);
  EXPECT_EQ(back.deep, item.deep);
  EXPECT_EQ(back.both, item.both);
  EXPECT_EQ(back.last, 9);
}

}  // namespace tutti::data::padded_batch_test
