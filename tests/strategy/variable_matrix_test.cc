// SPDX-License-Identifier: Apache-2.0
//
// What reading and writing a variable mean, for each place, aggregation and operation: the copies
// of mirrored variables (on write) and of those that synchronise on read.

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/device/device_scope.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/values/variable.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::variable_matrix_test {

using namespace test::variable_words;
using test::bit_equal;
using test::copies_are;
using test::kAllAggregations;
using test::make_variable;
using test::mirrored_cpus;
using test::my_id;
using test::on_read;
using test::on_write;
using test::random_tensor;
using test::scalar;
using test::tensor;
using test::tree_reduced;

enum class Op { kAssign, kAdd, kSub };
constexpr std::array kOps = {Op::kAssign, Op::kAdd, Op::kSub};

at::Tensor write(const Variable& v, Op op, const VariableValue& value, AssignOptions options = {}) {
  if (op == Op::kAssign) return v.assign(value, options);
  return op == Op::kAdd ? v.assign_add(value, options) : v.assign_sub(value, options);
}

at::Tensor applied(Op op, const at::Tensor& before, const at::Tensor& value) {
  const at::Tensor full = value.expand(before.sizes());
  if (op == Op::kAssign) return full.clone();
  return op == Op::kAdd ? before + full : before - full;
}

// Cases: the number of replicas, the operation.
class Matrix : public testing::TestWithParam<std::tuple<int, Op>> {
 protected:
  int n() const { return std::get<0>(GetParam()); }
  Op op() const { return std::get<1>(GetParam()); }

  // A different tensor for each replica, whose sum depends on the order of addition.
  at::Tensor part(int i) const {
    return random_tensor(before_.sizes(), before_.scalar_type(), 100 + static_cast<uint64_t>(i));
  }
  std::vector<at::Tensor> parts() const {
    std::vector<at::Tensor> all;
    for (int i = 0; i < n(); ++i) all.push_back(part(i));
    return all;
  }
  PerReplica<at::Tensor> per_replica() const { return PerReplica<at::Tensor>(parts()); }

  const MirroredStrategy strategy_ = mirrored_cpus(std::get<0>(GetParam()));
  at::Tensor before_ = random_tensor({5}, at::kFloat, 1);
};

INSTANTIATE_TEST_SUITE_P(All, Matrix,
                         testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(kOps)),
                         [](const auto& each) {
                           const Op op = std::get<1>(each.param);
                           return std::string(op == Op::kAssign ? "assign"
                                              : op == Op::kAdd  ? "add"
                                                                : "sub") +
                                  std::to_string(std::get<0>(each.param));
                         });

// ---- on write, in a replica ------------------------------------------------------

TEST_P(Matrix, ReplicaWriteWithoutAggregationChangesOnlyTheLocalComponent) {
  const Variable v = on_write(strategy_, before_, kNone);
  strategy_.run([&] {
    if (my_id() == 0) return;
    EXPECT_TRUE(bit_equal(write(v, op(), part(my_id())), applied(op(), before_, part(my_id()))));
  });
  EXPECT_TRUE(
      copies_are(v, [&](int i) { return i == 0 ? before_ : applied(op(), before_, part(i)); }));
}

TEST_P(Matrix, ReplicaWriteReducesTensorsAndAppliesThemEverywhere) {
  // With few elements one replica reduces for all; with many they share the work.
  for (const int64_t elements : {1, 5, 300, 70'000}) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf}) {
      before_ = random_tensor({elements}, dtype, 1);
      for (const VariableAggregation aggregation : {kSum, kMean}) {
        const Variable v = on_write(strategy_, before_, aggregation);
        const at::Tensor combined = tree_reduced(to_reduce_op(aggregation), parts());
        const at::Tensor expected = applied(op(), before_, combined);
        strategy_.run([&] { EXPECT_TRUE(bit_equal(write(v, op(), part(my_id())), expected)); });
        EXPECT_TRUE(copies_are(v, expected)) << elements << dtype << aggregation;
      }
    }
  }
}

TEST_P(Matrix, ReplicaWriteSumsIntegers) {
  before_ = random_tensor({400}, at::kLong, 1);
  const Variable v = on_write(strategy_, before_, kSum);
  strategy_.run([&] { write(v, op(), part(my_id())); });
  EXPECT_TRUE(copies_are(v, applied(op(), before_, tree_reduced(ReduceOp::kSum, parts()))));
}

TEST_P(Matrix, ReplicaWriteTakesTheValueOfTheFirstReplica) {
  for (const int64_t elements : {1, 70'000}) {
    for (const auto dtype : {at::kFloat, at::kLong}) {
      before_ = random_tensor({elements}, dtype, 1);
      const Variable v = on_write(strategy_, before_, kOnlyFirstReplica);
      const at::Tensor expected = applied(op(), before_, part(0));
      strategy_.run([&] { EXPECT_TRUE(bit_equal(write(v, op(), part(my_id())), expected)); });
      EXPECT_TRUE(copies_are(v, expected));
    }
  }
}

TEST_P(Matrix, ReplicaWriteOfAPerReplicaValueTakesItsComponent) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    const PerReplica<at::Tensor> value = per_replica();
    strategy_.run([&] { write(v, op(), value); });
    EXPECT_TRUE(copies_are(v, [&](int i) {
      if (aggregation == kNone) return applied(op(), before_, part(i));
      if (aggregation == kOnlyFirstReplica) return applied(op(), before_, part(0));
      return applied(op(), before_, tree_reduced(to_reduce_op(aggregation), parts()));
    })) << aggregation;
  }
}

TEST_P(Matrix, ReplicaWriteReducesDifferentNumbers) {
  const Variable sum = on_write(strategy_, before_, kSum);
  const Variable mean = on_write(strategy_, before_, kMean);
  const Variable first = on_write(strategy_, before_, kOnlyFirstReplica);
  strategy_.run([&] {
    write(sum, op(), my_id() + 1);
    write(mean, op(), 2.0 * my_id());
    write(first, op(), my_id() + 7);
  });
  const float total = static_cast<float>(n() * (n() + 1)) / 2;
  EXPECT_TRUE(copies_are(sum, applied(op(), before_, scalar(total))));
  EXPECT_TRUE(copies_are(mean, applied(op(), before_, scalar(static_cast<float>(n() - 1)))));
  EXPECT_TRUE(copies_are(first, applied(op(), before_, scalar(7.F))));
}

TEST_P(Matrix, ReplicaWriteRefusesToSumTheSameNumber) {
  const Variable v = on_write(strategy_, before_, kSum);
  EXPECT_TUTTI_ERROR(strategy_.run([&] { write(v, op(), 2.0); }), kInvalid, "non-distributed value",
                     "kSum over " + std::to_string(n()), "'w'");
  EXPECT_TRUE(copies_are(v, before_));
}

TEST_P(Matrix, ReplicaWriteRefusesToSumTheSameTensor) {
  for (const int64_t elements : {1, 5, 70'000}) {
    before_ = random_tensor({elements}, at::kFloat, 1);
    const Variable v = on_write(strategy_, before_, kSum);
    const at::Tensor shared = part(0);
    EXPECT_TUTTI_ERROR(strategy_.run([&] { write(v, op(), shared); }), kInvalid,
                       "non-distributed value", "kSum", "the same on every replica");
    EXPECT_TRUE(copies_are(v, before_));
  }
}

TEST_P(Matrix, ReplicaWriteTakesZeroAsItsOwnSum) {
  const Variable v = on_write(strategy_, before_, kSum);
  strategy_.run([&] { write(v, op(), 0); });
  EXPECT_TRUE(copies_are(v, applied(op(), before_, scalar(0.F))));
  const at::Tensor between = v.read_value();
  strategy_.run([&] { write(v, op(), 0.0); });
  EXPECT_TRUE(copies_are(v, applied(op(), between, scalar(0.F))));
  // Only a number: the contents of a tensor are not examined.
  const at::Tensor zeros = at::zeros_like(before_);
  EXPECT_TUTTI_ERROR(strategy_.run([&] { write(v, op(), zeros); }), kInvalid, "kSum");
}

TEST_P(Matrix, ReplicaWriteKeepsTheBitsOfTheSameValueAsItsMean) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    before_ = random_tensor({5}, dtype, 1);
    const Variable v = on_write(strategy_, before_, kMean);
    strategy_.run([&] { write(v, op(), 0.1); });
    EXPECT_TRUE(copies_are(v, applied(op(), before_, at::full({5}, 0.1, dtype))));
    for (const int64_t elements : {5, 70'000}) {
      before_ = random_tensor({elements}, dtype, 2);
      const Variable w = on_write(strategy_, before_, kMean);
      const at::Tensor shared = at::full({elements}, 0.1, dtype);
      strategy_.run([&] { write(w, op(), shared); });
      EXPECT_TRUE(copies_are(w, applied(op(), before_, shared)));
    }
  }
}

TEST_P(Matrix, ReplicaWriteTellsViewsOfTheSameMemoryApart) {
  const at::Tensor shared = random_tensor({3, 3}, at::kFloat, 5);
  before_ = random_tensor({3, 3}, at::kFloat, 1);
  const auto mine = [&](int i) { return i == 0 ? shared : shared.t(); };
  std::vector<at::Tensor> all;
  for (int i = 0; i < n(); ++i) all.push_back(mine(i).contiguous());
  for (const VariableAggregation aggregation : {kSum, kMean}) {
    const Variable v = on_write(strategy_, before_, aggregation);
    strategy_.run([&] { write(v, op(), mine(my_id())); });
    EXPECT_TRUE(
        copies_are(v, applied(op(), before_, tree_reduced(to_reduce_op(aggregation), all))));
  }
}

TEST_P(Matrix, ReplicaWriteOfAMirroredValueHasAMeanButNoSum) {
  const at::Tensor value = part(0);
  std::vector<at::Tensor> equal;
  for (int i = 0; i < n(); ++i) equal.push_back(value.clone());
  const Mirrored<at::Tensor> mirrored(equal);
  const Variable variable = on_write(strategy_, value, kNone);
  for (const VariableAggregation aggregation : {kNone, kMean, kOnlyFirstReplica}) {
    const Variable v = on_write(strategy_, before_, aggregation);
    strategy_.run([&] { write(v, op(), mirrored); });
    EXPECT_TRUE(copies_are(v, applied(op(), before_, value)));
    const Variable w = on_write(strategy_, before_, aggregation);
    strategy_.run([&] { write(w, op(), variable); });
    EXPECT_TRUE(copies_are(w, applied(op(), before_, value)));
  }
  const Variable v = on_write(strategy_, before_, kSum);
  EXPECT_TUTTI_ERROR(strategy_.run([&] { write(v, op(), mirrored); }), kInvalid, "kSum");
  EXPECT_TUTTI_ERROR(strategy_.run([&] { write(v, op(), variable); }), kInvalid, "kSum");
  EXPECT_TRUE(copies_are(v, before_));
}

TEST_P(Matrix, ReplicaWriteCombinesComponentsThatSynchroniseOnRead) {
  const Variable metric = on_read(strategy_, before_, kSum);
  strategy_.run([&] { metric.assign(part(my_id())); });
  const Variable v = on_write(strategy_, before_, kSum);
  strategy_.run([&] { write(v, op(), metric); });
  EXPECT_TRUE(copies_are(v, applied(op(), before_, tree_reduced(ReduceOp::kSum, parts()))));
}

TEST_P(Matrix, ReplicaWriteReturnsNothingUnlessAsked) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    strategy_.run(
        [&] { EXPECT_FALSE(write(v, op(), part(my_id()), {.read_value = false}).defined()); });
    EXPECT_FALSE(bit_equal(v.read_value(), before_));
  }
}

// ---- on write, elsewhere -----------------------------------------------------------

TEST_P(Matrix, WriteOutsideUpdatesEveryComponentAlike) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    EXPECT_TRUE(bit_equal(write(v, op(), part(0)), applied(op(), before_, part(0))));
    EXPECT_TRUE(copies_are(v, applied(op(), before_, part(0))));
    const at::Tensor between = v.read_value();
    strategy_.scope([&] { write(v, op(), 2.5); });
    EXPECT_TRUE(copies_are(v, applied(op(), between, scalar(2.5F))));
    const at::Tensor last = v.read_value();
    strategy_.run([&] {
      get_replica_context()->merge_call([&](const Strategy&) { write(v, op(), part(1)); });
    });
    EXPECT_TRUE(copies_are(v, applied(op(), last, part(1)))) << aggregation;
    EXPECT_FALSE(write(v, op(), part(1), {.read_value = false}).defined());
  }
}

TEST_P(Matrix, WriteOutsideOfAPerReplicaValueGivesEachReplicaItsOwn) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    write(v, op(), per_replica());
    EXPECT_TRUE(copies_are(v, [&](int i) { return applied(op(), before_, part(i)); }));
  }
}

TEST_P(Matrix, WriteOutsideAssignsAnotherVariable) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    write(v, op(), on_write(strategy_, part(0), kSum));
    EXPECT_TRUE(copies_are(v, applied(op(), before_, part(0))));
    const Variable plain(part(1));
    const at::Tensor between = v.read_value();
    write(v, op(), plain);
    EXPECT_TRUE(copies_are(v, applied(op(), between, part(1))));
  }
  const Variable v = on_write(strategy_, before_, kNone);
  const Variable metric = on_read(strategy_, before_, kMean);
  strategy_.run([&] { metric.assign(part(my_id())); });
  write(v, op(), metric);
  EXPECT_TRUE(copies_are(v, applied(op(), before_, tree_reduced(ReduceOp::kMean, parts()))));
}

TEST_P(Matrix, WriteOutsideMayExchangeComponents) {
  const Variable v = on_write(strategy_, before_, kNone);
  v.assign(per_replica());
  std::vector<at::Tensor> rotated;
  for (int i = 0; i < n(); ++i) {
    rotated.push_back(v.components()[static_cast<size_t>((i + 1) % n())]);
  }
  write(v, op(), PerReplica<at::Tensor>(rotated));
  EXPECT_TRUE(copies_are(v, [&](int i) { return applied(op(), part(i), part((i + 1) % n())); }));
}

TEST_P(Matrix, WriteInAnUpdateChangesOnlyThatComponent) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    strategy_.extended().update(
        v,
        [&](const Variable& mine, const at::Tensor& value) {
          const int i = *get_update_replica_id();
          EXPECT_TRUE(bit_equal(mine.value(), before_));
          EXPECT_TRUE(bit_equal(write(mine, op(), value), applied(op(), before_, part(i))));
          EXPECT_TRUE(bit_equal(write(mine, Op::kAdd, 1), applied(op(), before_, part(i)) + 1));
        },
        per_replica());
    EXPECT_TRUE(copies_are(v, [&](int i) { return applied(op(), before_, part(i)) + 1; }));
  }
}

TEST_P(Matrix, ReadTakesTheOwnComponentElseThatOnTheCurrentDevice) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_write(strategy_, before_, aggregation);
    v.assign(per_replica());
    strategy_.run([&] {
      EXPECT_TRUE(bit_equal(v.value(), part(my_id())));
      EXPECT_TRUE(bit_equal(v.read_value(), part(my_id())));
      EXPECT_TRUE(bit_equal(at::Tensor(v), part(my_id())));
      EXPECT_TRUE(v.value().is_same(v.components()[static_cast<size_t>(my_id())]));
    });
    const auto outside = [&] {
      EXPECT_TRUE(bit_equal(v.value(), part(0)));
      EXPECT_TRUE(bit_equal(v.read_value(), part(0)));
      for (int i = 0; i < n(); ++i) {
        const DeviceScope device(v.devices()[static_cast<size_t>(i)]);
        EXPECT_TRUE(bit_equal(v.value(), part(i)));
        EXPECT_TRUE(bit_equal(at::Tensor(v), part(i)));
      }
    };
    outside();
    strategy_.scope(outside);
    strategy_.extended().update(v, [&](const Variable& mine) {
      EXPECT_TRUE(bit_equal(mine.read_value(), part(*get_update_replica_id())));
    });
  }
}

// ---- on read -------------------------------------------------------------------------

TEST_P(Matrix, SyncOnReadInAReplicaChangesOnlyTheLocalComponent) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_read(strategy_, before_, aggregation);
    const at::Tensor shared = part(0);
    strategy_.run([&] {
      if (my_id() == 1) return;  // replicas do not wait for each other
      EXPECT_TRUE(bit_equal(write(v, op(), part(my_id())), applied(op(), before_, part(my_id()))));
      EXPECT_TRUE(bit_equal(v.value(), applied(op(), before_, part(my_id()))));
      EXPECT_TRUE(bit_equal(v.read_value(), v.value()));
      EXPECT_TRUE(bit_equal(at::Tensor(v), v.value()));
    });
    EXPECT_TRUE(
        copies_are(v, [&](int i) { return i == 1 ? before_ : applied(op(), before_, part(i)); }));
    strategy_.run([&] { v.assign(shared); });
    EXPECT_TRUE(copies_are(v, shared)) << aggregation;
    strategy_.run([&] { EXPECT_FALSE(write(v, op(), 2, {.read_value = false}).defined()); });
    EXPECT_TRUE(copies_are(v, applied(op(), shared, scalar(2.F)))) << aggregation;
  }
}

TEST_P(Matrix, SyncOnReadOutsideCombinesComponents) {
  for (const int64_t elements : {5, 70'000}) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      before_ = random_tensor({elements}, dtype, 1);
      for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
        const Variable v = on_read(strategy_, before_, aggregation);
        strategy_.run([&] { v.assign(part(my_id())); });
        const at::Tensor expected = aggregation == kOnlyFirstReplica
                                        ? part(0)
                                        : tree_reduced(to_reduce_op(aggregation), parts());
        const auto check = [&] {
          EXPECT_TRUE(bit_equal(v.value(), expected));
          EXPECT_TRUE(bit_equal(v.read_value(), expected));
          EXPECT_TRUE(bit_equal(at::Tensor(v), expected));
          EXPECT_TRUE(bit_equal(v + 1, expected + 1));
        };
        check();
        strategy_.scope(check);
        at::Tensor value = v.value();
        value.fill_(0);
        EXPECT_TRUE(copies_are(v, [&](int i) { return part(i); }));
      }
    }
  }
}

TEST_P(Matrix, SyncOnReadWithoutAggregationHasNoValueOutside) {
  const Variable v = on_read(strategy_, before_, kNone);
  const auto check = [&] {
    EXPECT_TUTTI_ERROR(v.value(), kInvalid, "Variable::value", "'m'", "kNone");
    EXPECT_TUTTI_ERROR(v.read_value(), kInvalid, "kNone");
    EXPECT_TUTTI_ERROR(at::Tensor(v), kInvalid, "kNone");
    EXPECT_TUTTI_ERROR(v + 1, kInvalid, "kNone");
  };
  check();
  strategy_.scope(check);
  // The value is written, but the new value cannot be returned.
  EXPECT_TUTTI_ERROR(write(v, op(), part(0)), kInvalid, "kNone");
  EXPECT_TRUE(copies_are(v, applied(op(), before_, part(0))));
  const at::Tensor between = v.components()[0].clone();
  EXPECT_FALSE(write(v, op(), part(1), {.read_value = false}).defined());
  EXPECT_TRUE(copies_are(v, applied(op(), between, part(1))));
}

TEST_P(Matrix, SyncOnReadOutsideDividesASumAmongComponents) {
  const Variable v = on_read(strategy_, before_, kSum);
  if (op() != Op::kAssign) {
    const std::string name = op() == Op::kAdd ? "assign_add" : "assign_sub";
    EXPECT_TUTTI_ERROR(write(v, op(), part(0)), kInvalid, "Variable::" + name, "'m'", "kSum");
    EXPECT_TUTTI_ERROR(strategy_.scope([&] { write(v, op(), 1, {.read_value = false}); }), kInvalid,
                       "kSum");
    EXPECT_TRUE(copies_are(v, before_));
    return;
  }
  at::Tensor share = part(0).clone();
  for (int64_t e = 0; e < share.numel(); ++e) {
    share.data_ptr<float>()[e] /= static_cast<float>(n());
  }
  v.assign(part(0));
  EXPECT_TRUE(copies_are(v, share));
  strategy_.scope([&] { v.assign(per_replica()); });
  EXPECT_TRUE(copies_are(v, [&](int i) { return part(i) / n(); }));
  const Variable integers = on_read(strategy_, tensor<int64_t>({0, 0}), kSum);
  const at::Tensor after = integers.assign(tensor<int64_t>({7, -7}));
  EXPECT_TRUE(copies_are(integers, tensor<int64_t>({7 / n(), -7 / n()})));
  EXPECT_TRUE(bit_equal(after, tensor<int64_t>({7 / n() * n(), -7 / n() * n()})));
  integers.assign(9);
  EXPECT_TRUE(copies_are(integers, at::full({2}, 9 / n(), at::kLong)));
}

TEST_P(Matrix, SyncOnReadOutsideWritesEveryComponentUnlessItIsASum) {
  for (const VariableAggregation aggregation : {kMean, kOnlyFirstReplica}) {
    const Variable v = on_read(strategy_, before_, aggregation);
    strategy_.run([&] { v.assign(part(my_id())); });
    write(v, op(), before_);
    EXPECT_TRUE(copies_are(v, [&](int i) { return applied(op(), part(i), before_); }));
    v.assign(before_);
    const at::Tensor after = write(v, op(), 0.1);
    const at::Tensor expected = applied(op(), before_, scalar(0.1F));
    EXPECT_TRUE(copies_are(v, expected));
    std::vector<at::Tensor> equal(static_cast<size_t>(n()), expected);
    EXPECT_TRUE(
        bit_equal(after, aggregation == kMean ? tree_reduced(ReduceOp::kMean, equal) : expected));
  }
}

TEST_P(Matrix, SyncOnReadInAnUpdateChangesOnlyThatComponent) {
  for (const VariableAggregation aggregation : kAllAggregations) {
    const Variable v = on_read(strategy_, before_, aggregation);
    strategy_.extended().update(
        v,
        [&](const Variable& mine, const at::Tensor& value) {
          EXPECT_TRUE(bit_equal(mine.value(), before_));
          EXPECT_TRUE(bit_equal(write(mine, op(), value), applied(op(), before_, value)));
        },
        per_replica());
    EXPECT_TRUE(copies_are(v, [&](int i) { return applied(op(), before_, part(i)); }));
  }
  const Variable five = on_read(strategy_, scalar(0.F), kSum);
  strategy_.extended().update(five, [](const Variable& mine) { mine.assign(5); });
  EXPECT_EQ(five.value().item<float>(), 5.F * static_cast<float>(n()));
}

// ---- dtypes that cannot be reduced -----------------------------------------------------

TEST(VariableMatrix, BooleansAreAssignedAsTheyAre) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  for (const VariableAggregation aggregation : {kNone, kOnlyFirstReplica}) {
    const Variable v = on_write(strategy, tensor({false, false}), aggregation);
    strategy.run([&] { v.assign(tensor({my_id() == 0, true})); });
    EXPECT_TRUE(copies_are(v, [&](int i) {
      return tensor({aggregation == kOnlyFirstReplica || i == 0, true});
    }));
    v.assign(true);
    EXPECT_TRUE(copies_are(v, tensor({true, true})));
  }
  const Variable flags = on_write(strategy, tensor({false, true}), kNone);
  const auto check = [&] {
    EXPECT_TUTTI_ERROR(flags.assign_add(true), kInvalid, "assign_add", "'w' (bool[2])");
    EXPECT_TUTTI_ERROR(flags.assign_sub(tensor({true, true})), kInvalid, "assign_sub", "bool");
    const IndexedSlices slices(tensor({true}), tensor({0}));
    EXPECT_TUTTI_ERROR(flags.scatter_add(slices), kInvalid, "scatter_add", "bool");
    EXPECT_TUTTI_ERROR(flags.scatter_div(slices), kInvalid, "scatter_div", "bool");
  };
  check();
  strategy.run(check);
  flags.scatter_update({tensor({true}), tensor({0})});
  EXPECT_TRUE(copies_are(flags, tensor({true, true})));
  const Variable sum = on_write(strategy, tensor({false, false}), kSum);
  EXPECT_TUTTI_ERROR(strategy.run([&] {
    sum.assign(tensor({true, my_id() == 0}));
  }),
                     kInvalid, "bool");
  EXPECT_TRUE(copies_are(sum, tensor({false, false})));
}

// ---- synchronised reads in replicas ----------------------------------------------------

TEST(VariableSyncOnRead, AReplicaGetsTheCombinationByConversion) {
  for (const int n : {1, 2, 3, 4}) {
    const MirroredStrategy strategy = mirrored_cpus(n);
    for (const int64_t elements : {3, 70'000}) {
      std::vector<at::Tensor> parts;
      for (int i = 0; i < n; ++i) {
        parts.push_back(random_tensor({elements}, at::kFloat, static_cast<uint64_t>(i)));
      }
      for (const VariableAggregation aggregation : {kSum, kMean, kOnlyFirstReplica}) {
        const Variable v = on_read(strategy, at::zeros({elements}), aggregation);
        const at::Tensor expected = aggregation == kOnlyFirstReplica
                                        ? parts[0]
                                        : tree_reduced(to_reduce_op(aggregation), parts);
        strategy.run([&] {
          v.assign(parts[static_cast<size_t>(my_id())]);
          {
            const VariableSyncOnReadScope scope = variable_sync_on_read_context();
            EXPECT_TRUE(bit_equal(at::Tensor(v), expected));
            EXPECT_TRUE(bit_equal(v * 2, expected * 2));
            EXPECT_TUTTI_ERROR(v.value(), ErrorCode::kUnimplemented, "Variable::value",
                               "variable_sync_on_read_context");
            EXPECT_TUTTI_ERROR(v.read_value(), ErrorCode::kUnimplemented, "Variable::read_value");
            EXPECT_TRUE(bit_equal(v.assign_add(0), parts[static_cast<size_t>(my_id())]));
          }
          EXPECT_TRUE(bit_equal(at::Tensor(v), parts[static_cast<size_t>(my_id())]));
        });
      }
    }
  }
}

TEST(VariableSyncOnRead, ScopesNest) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const Variable v = on_read(strategy, scalar(3.F), kSum);
  strategy.run([&] {
    const VariableSyncOnReadScope outer;
    { const VariableSyncOnReadScope inner; }
    EXPECT_EQ(at::Tensor(v).item<float>(), 6.F);
  });
}

TEST(VariableSyncOnRead, WithoutAggregationThereIsNothingToGet) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const Variable v = on_read(strategy, scalar(3.F), kNone);
  strategy.run([&] {
    const VariableSyncOnReadScope scope;
    EXPECT_TUTTI_ERROR(at::Tensor(v), kInvalid, "kNone");
  });
}

TEST(VariableSyncOnRead, OtherVariablesAndPlacesAreNotConcerned) {
  const MirroredStrategy strategy = mirrored_cpus(2);
  const Variable v = on_read(strategy, scalar(3.F), kSum);
  const Variable w = on_write(strategy, scalar(4.F), kSum);
  strategy.run([&] {
    const VariableSyncOnReadScope scope;
    if (my_id() == 0) {
      EXPECT_EQ(w.value().item<float>(), 4.F);
      EXPECT_EQ(at::Tensor(w).item<float>(), 4.F);
    }
  });
  // The thread that calls run() becomes replica 0, which has not asked for it.
  const VariableSyncOnReadScope outside;
  EXPECT_EQ(v.value().item<float>(), 6.F);
  strategy.run([&] {
    EXPECT_EQ(v.value().item<float>(), 3.F);
    EXPECT_EQ(at::Tensor(v).item<float>(), 3.F);
  });
  strategy.extended().update(
      v, [](const Variable& mine) { EXPECT_EQ(mine.value().item<float>(), 3.F); });
}

}  // namespace tutti::variable_matrix_test
