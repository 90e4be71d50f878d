// SPDX-License-Identifier: Apache-2.0
//
// The contract of Strategy::reduce, against plain loops over the components.

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "tutti/nest/indexed_slices.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::reduce_contract_test {

using test::bit_equal;
using test::scalar;
using test::tensor;

constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                                ReduceOp::kProduct};

// Small integers: exact in every order and type used here.
double number(int replica, int64_t i) { return static_cast<double>((replica * 3 + i * 5) % 7) - 2; }

double plain_reduce(ReduceOp op, const std::vector<double>& values) {
  double result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    if (op == ReduceOp::kMin) result = std::min(result, values[i]);
    if (op == ReduceOp::kMax) result = std::max(result, values[i]);
    if (op == ReduceOp::kProduct) result *= values[i];
    if (op == ReduceOp::kSum || op == ReduceOp::kMean) result += values[i];
  }
  return op == ReduceOp::kMean ? result / static_cast<double>(values.size()) : result;
}

at::Tensor numbers(int replica, at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  const at::Tensor flat = at::empty(shape, at::kDouble).reshape({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) flat[i] = number(replica, i);
  return flat.reshape(shape).to(dtype);
}

// Replica i has i rows of two: ragged, and none on replica 0.
at::Tensor ragged(int replica) { return numbers(replica, {replica, 2}); }

struct Metrics {
  at::Tensor loss;
  double weight = 0;
  std::vector<at::Tensor> parts;
  std::map<std::string, int64_t> counts;
};

TEST_P(StrategyContract, ReduceCombinesTensorsByEveryOp) {
  const auto values = per_replica([](int i) { return numbers(i, {2, 3}); });
  for (const ReduceOp op : kAllOps) {
    const at::Tensor result = strategy().reduce(op, values);
    ASSERT_EQ(result.sizes(), at::IntArrayRef({2, 3}));
    for (int64_t k = 0; k < 6; ++k) {
      std::vector<double> column;
      for (int r = 0; r < n(); ++r) column.push_back(number(r, k));
      EXPECT_DOUBLE_EQ(result.reshape({-1})[k].item<double>(), plain_reduce(op, column)) << op;
    }
  }
}

TEST_P(StrategyContract, ReduceLeavesItsInputAlone) {
  const auto values = per_replica([](int i) { return numbers(i, {4}); });
  at::Tensor result = strategy().reduce(ReduceOp::kSum, values);
  result.fill_(99);
  for (int i = 0; i < n(); ++i) {
    EXPECT_TRUE(bit_equal(values[static_cast<size_t>(i)], numbers(i, {4})));
  }
}

TEST_P(StrategyContract, ReduceAlongAnAxisCombinesTheGlobalBatch) {
  const auto values = per_replica([](int i) { return numbers(i, {3, 4}); });
  for (const ReduceOp op : kAllOps) {
    for (const int64_t axis : {0, 1, -1, -2}) {
      const at::Tensor result = strategy().reduce(op, values, axis);
      const bool rows = axis == 0 || axis == -2;
      const int64_t kept = rows ? 4 : 3;
      ASSERT_EQ(result.sizes(), at::IntArrayRef({kept}));
      for (int64_t k = 0; k < kept; ++k) {
        std::vector<double> all;
        for (int r = 0; r < n(); ++r) {
          for (int64_t j = 0; j < 7 - kept; ++j) {
            all.push_back(number(r, rows ? j * 4 + k : k * 4 + j));
          }
        }
        EXPECT_DOUBLE_EQ(result[k].item<double>(), plain_reduce(op, all)) << op << " axis " << axis;
      }
    }
  }
}

TEST_P(StrategyContract, ReduceAlongSeveralAxes) {
  const auto values = per_replica([](int i) { return numbers(i, {2, 3, 2}); });
  for (const ReduceOp op : kAllOps) {
    const at::Tensor result = strategy().reduce(op, values, {0, -1});
    ASSERT_EQ(result.sizes(), at::IntArrayRef({3}));
    for (int64_t k = 0; k < 3; ++k) {
      std::vector<double> all;
      for (int r = 0; r < n(); ++r) {
        for (int64_t a = 0; a < 2; ++a) {
          for (int64_t c = 0; c < 2; ++c) all.push_back(number(r, a * 6 + k * 2 + c));
        }
      }
      EXPECT_DOUBLE_EQ(result[k].item<double>(), plain_reduce(op, all)) << op;
    }
  }
}

TEST_P(StrategyContract, ReduceOfRaggedBatchesUsesTheNumberOfAllElements) {
  if (n() < 2) return;  // One replica has no rows here.
  const auto values = per_replica(ragged);
  for (const ReduceOp op : kAllOps) {
    const at::Tensor result = strategy().reduce(op, values, 0);
    ASSERT_EQ(result.sizes(), at::IntArrayRef({2}));
    for (int64_t k = 0; k < 2; ++k) {
      std::vector<double> all;
      for (int r = 0; r < n(); ++r) {
        for (int64_t row = 0; row < r; ++row) all.push_back(number(r, row * 2 + k));
      }
      EXPECT_DOUBLE_EQ(result[k].item<double>(), plain_reduce(op, all)) << op;
    }
  }
}

TEST_P(StrategyContract, MeanOfIntegersIsAFloat) {
  const auto ints = per_replica([](int i) { return tensor<int32_t>({i, i * i, 7}); });
  const at::Tensor mean = strategy().reduce(ReduceOp::kMean, ints);
  EXPECT_EQ(mean.scalar_type(), at::kDouble);
  double first = 0;
  double second = 0;
  for (int i = 0; i < n(); ++i) first += i, second += i * i;
  EXPECT_DOUBLE_EQ(mean[0].item<double>(), first / n());
  EXPECT_DOUBLE_EQ(mean[1].item<double>(), second / n());
  EXPECT_DOUBLE_EQ(mean[2].item<double>(), 7);

  const at::Tensor over_axis = strategy().reduce(ReduceOp::kMean, ints, 0);
  EXPECT_EQ(over_axis.scalar_type(), at::kDouble);
  EXPECT_DOUBLE_EQ(over_axis.item<double>(), (first + second + 7.0 * n()) / (3.0 * n()));

  const auto bytes = per_replica([](int) { return tensor<uint8_t>({250, 250, 250}); });
  const at::Tensor small = strategy().reduce(ReduceOp::kMean, bytes, 0);
  EXPECT_EQ(small.scalar_type(), at::kFloat);
  EXPECT_EQ(small.item<float>(), 250.F);  // the sum does not fit into uint8
}

TEST_P(StrategyContract, SumOfIntegersKeepsItsType) {
  const auto ints = per_replica([](int i) { return tensor<int16_t>({1, 2}).mul(i + 1); });
  const at::Tensor sum = strategy().reduce(ReduceOp::kSum, ints);
  EXPECT_EQ(sum.scalar_type(), at::kShort);
  EXPECT_EQ(sum[1].item<int>(), n() * (n() + 1));
  EXPECT_EQ(strategy().reduce(ReduceOp::kSum, ints, 0).scalar_type(), at::kShort);
}

TEST_P(StrategyContract, ReduceRefusesBools) {
  const auto flags = per_replica([](int) { return at::ones({2}, at::kBool); });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, flags), ErrorCode::kInvalidArgument,
                     "Strategy::reduce", "bool");
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, flags, 0), ErrorCode::kInvalidArgument,
                     "bool");
  const auto plain_flags = per_replica([](int) { return true; });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kMax, plain_flags), ErrorCode::kInvalidArgument,
                     "bool", "use an int");
  const auto texts = per_replica([](int) { return std::string("x"); });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, texts), ErrorCode::kInvalidArgument,
                     "string");
}

TEST_P(StrategyContract, ReduceCombinesCppScalars) {
  const auto doubles = per_replica([](int i) { return i + 0.5; });
  const auto ints = per_replica([](int i) { return i + 1; });
  double sum = 0;
  int product = 1;
  for (int i = 0; i < n(); ++i) sum += i + 0.5, product *= i + 1;
  EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kSum, doubles), sum);
  EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kMean, doubles), sum / n());
  EXPECT_EQ(strategy().reduce(ReduceOp::kMin, ints), 1);
  EXPECT_EQ(strategy().reduce(ReduceOp::kMax, ints), n());
  EXPECT_EQ(strategy().reduce(ReduceOp::kProduct, ints), product);
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kMean, ints), ErrorCode::kInvalidArgument,
                     "mean of a C++ integer", "double or a tensor");
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, doubles, 0), ErrorCode::kInvalidArgument,
                     "has no axis");
}

TEST_P(StrategyContract, ReduceCombinesStructsLeafByLeaf) {
  const auto values = per_replica([](int i) {
    return Metrics{scalar(1.0 * i), i * 2.0, {numbers(i, {2}), numbers(i + 1, {3})}, {{"n", i}}};
  });
  const Metrics sum = strategy().reduce(ReduceOp::kSum, values);
  const int triangle = n() * (n() - 1) / 2;
  EXPECT_DOUBLE_EQ(sum.loss.item<double>(), triangle);
  EXPECT_DOUBLE_EQ(sum.weight, 2.0 * triangle);
  ASSERT_EQ(sum.parts.size(), 2U);
  at::Tensor second = at::zeros({3}, at::kDouble);
  for (int i = 0; i < n(); ++i) second += numbers(i + 1, {3});
  EXPECT_TRUE(bit_equal(sum.parts[1], second));
  EXPECT_EQ(sum.counts.at("n"), triangle);
}

TEST_P(StrategyContract, ReduceOfTuplesReturnsATuple) {
  const auto [loss, count] = strategy().reduce(
      ReduceOp::kSum, per_replica([](int i) { return std::tuple(scalar(2.0), int64_t{i}); }));
  EXPECT_DOUBLE_EQ(loss.item<double>(), 2.0 * n());
  EXPECT_EQ(count, n() * (n() - 1) / 2);
}

TEST_P(StrategyContract, ReduceConcatenatesIndexedSlices) {
  const auto slices = per_replica([](int i) {
    return IndexedSlices(at::full({1, 2}, 1.0 + i, at::kDouble), tensor<int64_t>({i % 2}), {2, 2});
  });
  const IndexedSlices sum = strategy().reduce(ReduceOp::kSum, slices);
  const IndexedSlices mean = strategy().reduce(ReduceOp::kMean, slices);
  EXPECT_EQ(sum.indices().size(0), n());
  double even = 0;
  for (int i = 0; i < n(); i += 2) even += 1 + i;
  EXPECT_DOUBLE_EQ(sum.to_dense()[0][1].item<double>(), even);
  EXPECT_DOUBLE_EQ(mean.to_dense()[0][0].item<double>(), even / n());
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kMax, slices), ErrorCode::kInvalidArgument,
                     "IndexedSlices", "kMax");
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, slices, 0), ErrorCode::kInvalidArgument,
                     "without an axis");
}

TEST_P(StrategyContract, ReduceRefusesValuesOfDifferentStructure) {
  if (n() < 2) return;  // Nothing can differ.
  const auto optionals = per_replica([this](int i) {
    return i == n() - 1 ? std::optional<at::Tensor>() : std::optional(at::ones({}));
  });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, optionals), ErrorCode::kInvalidArgument,
                     "different structure", "replica " + std::to_string(n() - 1));
  const auto maps = per_replica([](int i) {
    return std::map<std::string, at::Tensor>{{i == 0 ? "a" : "b", at::ones({})}};
  });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, maps), ErrorCode::kInvalidArgument,
                     "different structure");
  const auto vectors = per_replica(
      [](int i) { return std::vector<at::Tensor>(static_cast<size_t>(i + 1), at::ones({})); });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, vectors), ErrorCode::kInvalidArgument,
                     "different structure");
}

TEST_P(StrategyContract, ReduceRefusesTensorsThatDoNotFit) {
  EXPECT_TUTTI_ERROR(
      strategy().reduce(ReduceOp::kSum, per_replica([](int) { return at::Tensor(); })),
      ErrorCode::kInvalidArgument, "Strategy::reduce", "undefined");
  const auto matrix = per_replica([](int) { return at::ones({2, 3}); });
  for (const int64_t axis : {2, -3}) {
    EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, matrix, axis), ErrorCode::kInvalidArgument,
                       "axis " + std::to_string(axis), "out of range", "float32[2, 3]");
  }
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, matrix, {0, -2}),
                     ErrorCode::kInvalidArgument, "twice");
  if (n() < 2) return;
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, per_replica(ragged)),
                     ErrorCode::kInvalidArgument, "float64[0, 2]", "float64[1, 2]", "axis");
  const auto mixed =
      per_replica([](int i) { return at::ones({2}, i == 0 ? at::kFloat : at::kInt); });
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, mixed), ErrorCode::kInvalidArgument,
                     "float32[2]", "int32[2]");
}

TEST_P(StrategyContract, ReduceRefusesAnotherNumberOfComponents) {
  const PerReplica<int> values(std::vector<int>(static_cast<size_t>(n()) + 2, 1));
  EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, values), ErrorCode::kInvalidArgument,
                     "Strategy::reduce", std::to_string(n() + 2) + " components");
}

TEST_P(StrategyContract, APlainValueIsEqualEverywhere) {
  const at::Tensor value = tensor({1.0, 4.0});
  EXPECT_TRUE(bit_equal(strategy().reduce(ReduceOp::kMean, value), value));
  EXPECT_TRUE(bit_equal(strategy().reduce(ReduceOp::kMax, value), value));
  EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kMean, value, 0).item<double>(), 2.5);
  EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kMin, value, -1).item<double>(), 1);
  EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kMean, 2.5), 2.5);
  if (n() == 1) {
    EXPECT_TRUE(bit_equal(strategy().reduce(ReduceOp::kSum, value), value));
    EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kSum, value, 0).item<double>(), 5);
    EXPECT_EQ(strategy().reduce(ReduceOp::kProduct, 3), 3);
  } else {
    EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, value), ErrorCode::kInvalidArgument,
                       "not per replica", "kSum");
    EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kProduct, 3), ErrorCode::kInvalidArgument,
                       "kProduct", std::to_string(n()) + " replicas");
  }
}

TEST_P(StrategyContract, AMirroredValueIsReducedLikeAPlainOne) {
  const Mirrored<at::Tensor> value(
      std::vector<at::Tensor>(static_cast<size_t>(n()), tensor({3.0, 5.0})));
  EXPECT_TRUE(bit_equal(strategy().reduce(ReduceOp::kMean, value), tensor({3.0, 5.0})));
  EXPECT_DOUBLE_EQ(strategy().reduce(ReduceOp::kMax, value, 0).item<double>(), 5);
  if (n() == 1) {
    EXPECT_TRUE(bit_equal(strategy().reduce(ReduceOp::kSum, value), tensor({3.0, 5.0})));
  } else {
    EXPECT_TUTTI_ERROR(strategy().reduce(ReduceOp::kSum, value), ErrorCode::kInvalidArgument,
                       "the same on all");
  }
}

TEST_P(StrategyContract, ReduceAcceptsNonContiguousTensorsAndGradients) {
  const auto values = per_replica([](int i) {
    return numbers(i, {3, 2}).requires_grad_(true).transpose(0, 1);
  });
  const at::Tensor sum = strategy().reduce(ReduceOp::kSum, values);
  at::Tensor expected = at::zeros({2, 3}, at::kDouble);
  for (int i = 0; i < n(); ++i) expected += numbers(i, {3, 2}).t();
  EXPECT_TRUE(bit_equal(sum, expected));
  EXPECT_FALSE(sum.requires_grad());
}

}  // namespace tutti::reduce_contract_test
