// SPDX-License-Identifier: Apache-2.0
//
// Scatter operations of variables, against plain loops over rows and columns.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/nest/indexed_slices.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/values/variable.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::variable_scatter_test {

using namespace test::variable_words;
using test::bit_equal;
using test::copies_are;
using test::kAllAggregations;
using test::mirrored_cpus;
using test::my_id;
using test::on_read;
using test::on_write;
using test::random_tensor;
using test::scalar;
using test::tensor;

constexpr std::array kOps = {"scatter_add", "scatter_sub", "scatter_mul",   "scatter_div",
                             "scatter_min", "scatter_max", "scatter_update"};
constexpr size_t kCombinable = 4;  // the first ones

at::Tensor scatter(const Variable& v, const std::string& op, const IndexedSlices& slices,
                   AssignOptions options = {}) {
  if (op == "scatter_add") return v.scatter_add(slices, options);
  if (op == "scatter_sub") return v.scatter_sub(slices, options);
  if (op == "scatter_mul") return v.scatter_mul(slices, options);
  if (op == "scatter_div") return v.scatter_div(slices, options);
  if (op == "scatter_min") return v.scatter_min(slices, options);
  if (op == "scatter_max") return v.scatter_max(slices, options);
  return v.scatter_update(slices, options);
}

template <class T>
T combined(const std::string& op, T a, T b) {
  if (op == "scatter_add") return a + b;
  if (op == "scatter_sub") return a - b;
  if (op == "scatter_mul") return a * b;
  if (op == "scatter_div") return a / b;
  if constexpr (!c10::is_complex<T>::value) {
    if (op == "scatter_min") return std::min(a, b);
    if (op == "scatter_max") return std::max(a, b);
  }
  return b;
}

struct Rows {
  std::vector<int64_t> indices;
  at::Tensor values;  // contiguous, one row for each index

  IndexedSlices slices() const {
    return {values, at::tensor(indices, at::TensorOptions(at::kLong))};
  }
};

// Combines the rows of `before` with all rows, one at a time.
at::Tensor by_loop(const std::string& op, const at::Tensor& before, const std::vector<Rows>& all,
                   int divisor = 1) {
  at::Tensor result = before.clone();
  test::with_type(before.scalar_type(), [&]<class T>() {
    const int64_t columns = before.numel() / before.size(0);
    for (const Rows& rows : all) {
      for (size_t i = 0; i < rows.indices.size(); ++i) {
        for (int64_t c = 0; c < columns; ++c) {
          T& target = result.data_ptr<T>()[rows.indices[i] * columns + c];
          T value = rows.values.data_ptr<T>()[static_cast<int64_t>(i) * columns + c];
          if (divisor != 1) value = static_cast<T>(value / static_cast<T>(divisor));
          target = static_cast<T>(combined<T>(op, target, value));
        }
      }
    }
  });
  return result;
}

class VariableScatter : public testing::TestWithParam<int> {
 protected:
  int n() const { return GetParam(); }

  // Replica i has i + 2 rows, one of which occurs twice.
  static Rows rows_of(int i, at::ScalarType dtype = at::kDouble) {
    std::vector<int64_t> indices = {3, 3};
    for (int k = 0; k < i; ++k) indices.push_back((k + i) % 4);
    const auto count = static_cast<int64_t>(indices.size());
    return {indices, random_tensor({count, 3}, dtype, 40 + static_cast<uint64_t>(i))};
  }
  std::vector<Rows> all_rows() const {
    std::vector<Rows> all;
    for (int i = 0; i < n(); ++i) all.push_back(rows_of(i));
    return all;
  }

  const MirroredStrategy strategy_ = mirrored_cpus(GetParam());
  const at::Tensor before_ = random_tensor({4, 3}, at::kDouble, 1);
};

INSTANTIATE_TEST_SUITE_P(Replicas, VariableScatter, testing::Values(2, 3, 4));

TEST_P(VariableScatter, OutsideEveryCopyIsChanged) {
  for (const std::string op : kOps) {
    for (const VariableAggregation aggregation : {kNone, kOnlyFirstReplica}) {
      const Variable v = on_write(strategy_, before_, aggregation);
      const at::Tensor expected = by_loop(op, before_, {rows_of(2)});
      EXPECT_TRUE(bit_equal(scatter(v, op, rows_of(2).slices()), expected)) << op;
      EXPECT_TRUE(copies_are(v, expected)) << op;
    }
  }
  for (size_t i = 0; i < kCombinable; ++i) {
    for (const VariableAggregation aggregation : {kSum, kMean}) {
      const Variable v = on_write(strategy_, before_, aggregation);
      strategy_.scope([&] { scatter(v, kOps[i], rows_of(2).slices()); });
      EXPECT_TRUE(copies_are(v, by_loop(kOps[i], before_, {rows_of(2)}))) << kOps[i];
    }
  }
}

TEST_P(VariableScatter, OtherDtypesAndShapes) {
  const Rows rows{{0, 2, 2, 1}, tensor<int64_t>({7, -2, 3, -3})};
  const at::Tensor integers = tensor<int64_t>({50, -7, 9});
  for (const std::string op : kOps) {
    const Variable v = on_write(strategy_, integers, kNone);
    scatter(v, op, rows.slices());
    EXPECT_TRUE(copies_are(v, by_loop(op, integers, {rows}))) << op;
    const at::Tensor floats = random_tensor({4, 3}, at::kFloat, 8);
    const Variable w = on_write(strategy_, floats, kNone);
    const Rows float_rows = rows_of(3, at::kFloat);
    scatter(w, op, float_rows.slices());
    EXPECT_TRUE(copies_are(w, by_loop(op, floats, {float_rows}))) << op;
  }
}

TEST_P(VariableScatter, ChangesOnlyTheLocalComponentWithoutAggregation) {
  for (const std::string op : kOps) {
    const Variable v = on_write(strategy_, before_, kNone);
    strategy_.run([&] {
      if (my_id() != 0) scatter(v, op, rows_of(my_id()).slices());
    });
    EXPECT_TRUE(copies_are(v, [&](int i) {
      return i == 0 ? before_ : by_loop(op, before_, {rows_of(i)});
    })) << op;
  }
}

TEST_P(VariableScatter, AppliesTheSlicesOfAllReplicasInTheirOrder) {
  for (size_t i = 0; i < kCombinable; ++i) {
    const std::string op = kOps[i];
    const Variable sum = on_write(strategy_, before_, kSum);
    const Variable mean = on_write(strategy_, before_, kMean);
    const at::Tensor expected = by_loop(op, before_, all_rows());
    strategy_.run([&] {
      EXPECT_TRUE(bit_equal(scatter(sum, op, rows_of(my_id()).slices()), expected));
      scatter(mean, op, rows_of(my_id()).slices());
    });
    EXPECT_TRUE(copies_are(sum, expected)) << op;
    EXPECT_TRUE(copies_are(mean, by_loop(op, before_, all_rows(), n()))) << op;
  }
}

TEST_P(VariableScatter, TakesOnlyTheSlicesOfTheFirstReplica) {
  for (const std::string op : kOps) {
    const Variable v = on_write(strategy_, before_, kOnlyFirstReplica);
    strategy_.run([&] { scatter(v, op, rows_of(my_id()).slices()); });
    EXPECT_TRUE(copies_are(v, by_loop(op, before_, {rows_of(0)}))) << op;
  }
}

TEST_P(VariableScatter, ChangesOnlyTheComponentOfAnUpdate) {
  for (const std::string op : kOps) {
    const Variable v = on_write(strategy_, before_, kOnlyFirstReplica);
    strategy_.extended().update(v, [&](const Variable& mine) {
      scatter(mine, op, rows_of(*get_update_replica_id()).slices());
    });
    EXPECT_TRUE(copies_are(v, [&](int i) { return by_loop(op, before_, {rows_of(i)}); })) << op;
  }
}

TEST_P(VariableScatter, SharedValuesWithOwnIndicesAreContributionsOfEach) {
  const at::Tensor shared = random_tensor({1, 3}, at::kDouble, 9);
  const auto mine = [&](int i) { return Rows{{i % 4}, shared}; };
  std::vector<Rows> all;
  for (int i = 0; i < n(); ++i) all.push_back(mine(i));
  for (const VariableAggregation aggregation : {kSum, kMean}) {
    const Variable v = on_write(strategy_, before_, aggregation);
    strategy_.run([&] { v.scatter_add(mine(my_id()).slices()); });
    EXPECT_TRUE(
        copies_are(v, by_loop("scatter_add", before_, all, aggregation == kMean ? n() : 1)));
  }
}

TEST_P(VariableScatter, TheSameSlicesHaveAMeanButNoSum) {
  const IndexedSlices shared = rows_of(1).slices();
  const Variable mean = on_write(strategy_, before_, kMean);
  strategy_.run([&] { mean.scatter_add(shared); });
  EXPECT_TRUE(copies_are(mean, by_loop("scatter_add", before_, {rows_of(1)})));
  const Variable sum = on_write(strategy_, before_, kSum);
  EXPECT_TUTTI_ERROR(strategy_.run([&] { sum.scatter_add(shared); }), kInvalid,
                     "Variable::scatter_add", "kSum", "the same on every replica");
  EXPECT_TRUE(copies_are(sum, before_));
}

TEST_P(VariableScatter, MinMaxAndUpdateCannotBeCombined) {
  for (size_t i = kCombinable; i < kOps.size(); ++i) {
    for (const VariableAggregation aggregation : {kSum, kMean}) {
      const Variable v = on_write(strategy_, before_, aggregation);
      const auto check = [&] {
        EXPECT_TUTTI_ERROR(scatter(v, kOps[i], rows_of(0).slices()), ErrorCode::kUnimplemented,
                           kOps[i], "'w'", to_string(aggregation));
      };
      check();
      strategy_.scope(check);
      strategy_.run(check);
      strategy_.extended().update(v, [&](const Variable&) { check(); });
      EXPECT_TRUE(copies_are(v, before_));
    }
  }
}

TEST_P(VariableScatter, VariablesThatSynchroniseOnReadHaveNone) {
  for (const std::string op : kOps) {
    for (const VariableAggregation aggregation : kAllAggregations) {
      const Variable v = on_read(strategy_, before_, aggregation);
      const auto check = [&] {
        EXPECT_TUTTI_ERROR(scatter(v, op, rows_of(0).slices()), ErrorCode::kUnimplemented, op,
                           "'m'", "synchronises on read");
      };
      check();
      strategy_.scope(check);
      strategy_.run(check);
      strategy_.extended().update(v, [&](const Variable&) { check(); });
      EXPECT_TRUE(copies_are(v, before_));
    }
  }
}

TEST_P(VariableScatter, SlicesThatDoNotFitAreRefused) {
  const Variable v = on_write(strategy_, before_, kNone);
  const Variable point = on_write(strategy_, scalar(1.0), kNone);
  const Variable integers = on_write(strategy_, tensor<int64_t>({5, 6}), kNone);
  const at::Tensor two = at::ones({2, 3}, at::kDouble);
  const auto check = [&] {
    for (const std::string op : kOps) {
      const std::string who = "Variable::" + op + ":";
      EXPECT_TUTTI_ERROR(scatter(v, op, {two, tensor<int64_t>({0, 4})}), kInvalid, who, "no row 4",
                         "variable 'w' (float64[4, 3])", "0 to 3");
      EXPECT_TUTTI_ERROR(scatter(v, op, {two, tensor<int64_t>({-1, 0})}), kInvalid, who,
                         "no row -1");
      EXPECT_TUTTI_ERROR(scatter(v, op, {two.to(at::kFloat), tensor<int64_t>({0, 1})}), kInvalid,
                         who, "float32[2, 3]");
      EXPECT_TUTTI_ERROR(scatter(v, op, {two.slice(1, 0, 2), tensor<int64_t>({0, 1})}), kInvalid,
                         who, "float64[2, 2]");
      EXPECT_TUTTI_ERROR(scatter(v, op, {two.reshape({2, 3, 1}), tensor<int64_t>({0, 1})}),
                         kInvalid, who);
      EXPECT_TUTTI_ERROR(scatter(v, op, {two, tensor<int64_t>({0, 1}), {5, 3}}), kInvalid, who,
                         "[5, 3]");
      EXPECT_TUTTI_ERROR(scatter(point, op, {tensor({1.0}), tensor<int64_t>({0})}), kInvalid, who,
                         "has no rows");
    }
    EXPECT_TUTTI_ERROR(integers.scatter_div({tensor<int64_t>({2, 0}), tensor<int64_t>({0, 1})}),
                       kInvalid, "scatter_div", "zero");
  };
  check();
  strategy_.run(check);
  EXPECT_TRUE(copies_are(v, before_));
  EXPECT_TRUE(copies_are(integers, tensor<int64_t>({5, 6})));
}

TEST_P(VariableScatter, BadSlicesOfOneReplicaChangeNoCopy) {
  const Variable v = on_write(strategy_, before_, kSum);
  EXPECT_TUTTI_ERROR(strategy_.run([&] {
    v.scatter_add({at::ones({1, 3}, at::kDouble), tensor<int64_t>({my_id() == 1 ? 9 : 0})});
  }),
                     kInvalid, "no row 9");
  EXPECT_TRUE(copies_are(v, before_));
}

TEST_P(VariableScatter, Int32IndicesEmptySlicesAndNoReturnedValue) {
  const Variable v = on_write(strategy_, before_, kSum);
  v.scatter_add({before_.slice(0, 1, 2), tensor<int32_t>({1}), {4, 3}});
  EXPECT_TRUE(copies_are(v, by_loop("scatter_add", before_, {{{1}, before_.slice(0, 1, 2)}})));
  v.assign(before_);
  const IndexedSlices empty(at::empty({0, 3}, at::kDouble), at::empty({0}, at::kLong));
  EXPECT_FALSE(v.scatter_add(empty, {.read_value = false}).defined());
  strategy_.run([&] {
    if (my_id() == 0) {
      v.scatter_sub(rows_of(0).slices(), {.read_value = false});
    } else {
      EXPECT_FALSE(v.scatter_sub(empty, {.read_value = false}).defined());
    }
  });
  EXPECT_TRUE(copies_are(v, by_loop("scatter_sub", before_, {rows_of(0)})));
}

TEST_P(VariableScatter, RowsOfTheVariableItselfAreTakenAsTheyWere) {
  for (const std::string op : kOps) {
    const Variable v = on_write(strategy_, before_, kNone);
    const Rows rows{{1, 2, 3}, before_.slice(0, 0, 3).clone()};
    strategy_.run([&] { scatter(v, op, {v.value().slice(0, 0, 3), tensor<int64_t>({1, 2, 3})}); });
    EXPECT_TRUE(copies_are(v, by_loop(op, before_, {rows}))) << op;
  }
}

TEST(VariableScatterPlain, AVariableWithOneCopyScatters) {
  const at::Tensor before = random_tensor({4, 3}, at::kDouble, 1);
  const Rows rows{{0, 3, 0}, random_tensor({3, 3}, at::kDouble, 2)};
  for (const std::string op : kOps) {
    const Variable v(before, {.aggregation = kNone});
    scatter(v, op, rows.slices());
    EXPECT_TRUE(copies_are(v, by_loop(op, before, {rows}))) << op;
  }
}

}  // namespace tutti::variable_scatter_test
