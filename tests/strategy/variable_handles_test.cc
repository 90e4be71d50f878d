// SPDX-License-Identifier: Apache-2.0
//
// Classes derived from Variable that add no data: wherever a Variable is accepted, so are they, and
// with the same meaning.

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/tutti.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/tensors.h"

namespace tutti::variable_handles_test {
namespace {

using namespace test::variable_words;
using test::bit_equal;
using test::copies_are;
using test::mirrored_cpus;
using test::on_read;
using test::on_write;
using test::tensor;

class Table : public Variable {
 public:
  using Variable::Variable;
  explicit Table(const Variable& variable) : Variable(variable) {}

  int64_t rows() const { return shape()[0]; }
};

class VariableHandles : public testing::Test {
 protected:
  const MirroredStrategy strategy_ = mirrored_cpus(2);
  const Variable weights_ = on_write(strategy_, tensor({1., 2., 3.}), kMean);
  const Variable counts_ = on_read(strategy_, tensor({1., 2., 3.}), kSum);
  const Table table_{weights_};
  const Table totals_{counts_};
};

TEST_F(VariableHandles, AreMadeAsVariablesAre) {
  const Table made = strategy_.scope([] { return Table(tensor({1., 2.}), {.name = "t"}); });
  EXPECT_EQ(made.components().size(), 2U);
  EXPECT_EQ(made.rows(), 2);
  EXPECT_TRUE(table_.is_same(weights_));
}

TEST_F(VariableHandles, AreOperands) {
  const at::Tensor two = at::full({3}, 2.0);
  EXPECT_TRUE(at::equal(table_ + table_, tensor({2., 4., 6.})));
  EXPECT_TRUE(at::equal(table_ + 1, tensor({2., 3., 4.})));
  EXPECT_TRUE(at::equal(4 - table_, tensor({3., 2., 1.})));
  EXPECT_TRUE(at::equal(table_ * two, tensor({2., 4., 6.})));
  EXPECT_TRUE(at::equal(two * table_, tensor({2., 4., 6.})));
  EXPECT_TRUE(at::equal(table_ / at::Scalar(2), tensor({0.5, 1., 1.5})));
  EXPECT_TRUE(at::equal(weights_ - table_, at::zeros({3}, at::kDouble)));
  EXPECT_TRUE(at::equal(-table_, tensor({-1., -2., -3.})));
  EXPECT_TRUE(at::equal(at::relu(table_), tensor({1., 2., 3.})));
}

TEST_F(VariableHandles, AreReducedAndGatheredAsVariablesAre) {
  EXPECT_TRUE(at::equal(strategy_.reduce(ReduceOp::kSum, totals_), tensor({2., 4., 6.})));
  EXPECT_TRUE(at::equal(strategy_.reduce(ReduceOp::kMean, table_), tensor({1., 2., 3.})));
  EXPECT_EQ(strategy_.gather(totals_, 0).size(0), 6);
  const Mirrored<at::Tensor> on_one =
      strategy_.extended().reduce_to(ReduceOp::kSum, totals_, "CPU:0");
  EXPECT_TRUE(at::equal(on_one[0], tensor({2., 4., 6.})));
  EXPECT_EQ(strategy_.extended().reduce_to(ReduceOp::kSum, totals_, table_).size(), 2U);
}

TEST_F(VariableHandles, HaveTheLocalResultsOfTheirVariable) {
  const std::vector<at::Tensor> locals = strategy_.local_results(table_);
  ASSERT_EQ(locals.size(), 2U);
  EXPECT_TRUE(locals[1].is_same(weights_.components()[1]));
  EXPECT_EQ(strategy_.local_results(Table(weights_)).size(), 2U);
}

TEST_F(VariableHandles, AreReducedAndGatheredInReplicas) {
  const auto sums =
      strategy_.run([&] { return get_replica_context()->all_reduce(ReduceOp::kSum, totals_); });
  EXPECT_TRUE(at::equal(sums[1], tensor({2., 4., 6.})));
  const auto all = strategy_.run([&] { return get_replica_context()->all_gather(totals_, 0); });
  EXPECT_EQ(all[0].size(0), 6);
}

TEST_F(VariableHandles, AreReadWrittenAndUpdated) {
  strategy_.run([&] { table_.assign_add(tensor({1., 1., 1.})); });
  EXPECT_TRUE(copies_are(weights_, tensor({2., 3., 4.})));
  strategy_.extended().update(table_, [](const Variable& copy) { copy.assign_add(1.0); });
  strategy_.run([&] {
    get_replica_context()->update(table_, [](const Variable& copy) { copy.assign_add(3.0); });
  });
  EXPECT_TRUE(copies_are(weights_, tensor({6., 7., 8.})));
  counts_.assign(table_);
  EXPECT_TRUE(bit_equal(counts_.value(), table_.value()));
}

TEST_F(VariableHandles, ArriveInReplicasWithTheirType) {
  const auto rows = strategy_.run([](const Table& table) { return table.rows(); }, table_);
  EXPECT_EQ(rows[1], 3);
}

TEST_F(VariableHandles, PrintAndAreFound) {
  std::ostringstream mine;
  std::ostringstream base;
  mine << table_;
  base << weights_;
  EXPECT_EQ(mine.str(), base.str());
  StrategyExtended& extended = strategy_.extended();
  EXPECT_TRUE(extended.value_container(table_).is_same(weights_));
  EXPECT_TRUE(extended.variable_created_in_scope(table_));
  EXPECT_TRUE(bit_equal(extended.read_var(table_), weights_.value()));
}

}  // namespace
}  // namespace tutti::variable_handles_test
