// SPDX-License-Identifier: Apache-2.0
//
// What CrossDeviceOps does for every implementation: checks, and the default all_reduce.

#include "tutti/collectives/cross_device_ops.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tutti/collectives/reduction_tree.h"

#include "tests/support/expect_error.h"
#include "tests/support/team.h"
#include "tests/support/tensors.h"

namespace tutti {
namespace {

using test::bit_equal;
using test::tensor;

// Implements only what it must, and counts calls.
class CountingOps final : public CrossDeviceOps {
 public:
  using CrossDeviceOps::CrossDeviceOps;

  int reductions = 0;
  CommunicationOptions last_options;

 private:
  at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                       const CommunicationOptions& options) override {
    ++reductions;
    last_options = options;
    const std::vector<at::Tensor> inputs(value.begin(), value.end());
    return reduce_tree(op, inputs);
  }
};

PerReplica<at::Tensor> per_replica(std::vector<at::Tensor> components) {
  return PerReplica<at::Tensor>(std::move(components));
}

TEST(CrossDeviceOps, ReduceCallsTheImplementationWithTheOptions) {
  CountingOps ops;
  const at::Tensor sum = ops.reduce(ReduceOp::kSum, per_replica({tensor({1.f}), tensor({2.f})}),
                                    "CPU:0", {.bytes_per_pack = 7})[0];
  EXPECT_TRUE(bit_equal(sum, tensor({3.f})));
  EXPECT_EQ(ops.reductions, 1);
  EXPECT_EQ(ops.last_options.bytes_per_pack, 7);
}

TEST(CrossDeviceOps, RefusesComponentsThatDiffer) {
  CountingOps ops;
  EXPECT_TUTTI_ERROR(
      ops.reduce(ReduceOp::kSum, per_replica({tensor({1.f}), tensor({1.f}), tensor({1.f, 2.f})}),
                 "CPU:0"),
      ErrorCode::kInvalidArgument,
      "CrossDeviceOps::reduce: replica 0 has float32[1] but replica 2 has float32[2]",
      "give Strategy::reduce an axis");
  EXPECT_TUTTI_ERROR(
      ops.reduce(ReduceOp::kSum, per_replica({tensor({1.f}), tensor({1.})}), "CPU:0"),
      ErrorCode::kInvalidArgument, "replica 0 has float32[1] but replica 1 has float64[1]");
  EXPECT_EQ(ops.reductions, 0);
}

TEST(CrossDeviceOps, RefusesUndefinedComponents) {
  CountingOps ops;
  EXPECT_TUTTI_ERROR(
      ops.reduce(ReduceOp::kSum, per_replica({tensor({1.f}), at::Tensor()}), "CPU:0"),
      ErrorCode::kInvalidArgument,
      "CrossDeviceOps::reduce: the component of replica 1 is an undefined tensor");
  EXPECT_TUTTI_ERROR(ops.reduce(ReduceOp::kSum, per_replica({at::Tensor()}), "CPU:0"),
                     ErrorCode::kInvalidArgument, "the component of replica 0 is an undefined");
}

TEST(CrossDeviceOps, RefusesTypesThatCannotBeReduced) {
  CountingOps ops;
  EXPECT_TUTTI_ERROR(
      ops.reduce(ReduceOp::kSum, per_replica({tensor({true}), tensor({true})}), "CPU:0"),
      ErrorCode::kInvalidArgument,
      "CrossDeviceOps::reduce: values of type bool cannot be reduced by kSum");
  EXPECT_TUTTI_ERROR(
      ops.reduce(ReduceOp::kMax, per_replica({at::empty({2}, at::kComplexFloat)}), "CPU:0"),
      ErrorCode::kInvalidArgument, "complex64 cannot be reduced by kMax");
}

TEST(CrossDeviceOps, RefusesImpossibleOptions) {
  CountingOps ops;
  EXPECT_TUTTI_ERROR(
      ops.reduce(ReduceOp::kSum, per_replica({tensor({1.f})}), "CPU:0", {.bytes_per_pack = -1}),
      ErrorCode::kInvalidArgument, "bytes_per_pack is -1");
  test::TensorGrid grid = {{tensor({1.f})}};
  EXPECT_TUTTI_ERROR(test::all_reduce(ops, ReduceOp::kSum, grid, grid, {.bytes_per_pack = -1}),
                     ErrorCode::kInvalidArgument, "bytes_per_pack is -1");
}

TEST(CrossDeviceOps, RefusesANullArena) {
  EXPECT_TUTTI_ERROR(CountingOps(std::shared_ptr<Arena>()), ErrorCode::kInvalidArgument,
                     "CrossDeviceOps: the arena is null.");
}

TEST(CrossDeviceOps, KeepsTheArenaItIsGiven) {
  const auto arena = std::make_shared<HeapArena>();
  CountingOps ops(arena);
  EXPECT_EQ(&ops.arena(), arena.get());
}

TEST(CrossDeviceOps, AllReduceByDefaultReducesEachTensorOnceAndCopiesIt) {
  for (const bool threads : {false, true}) {
    CountingOps ops;
    test::TensorGrid inputs = {{tensor({1.f, 2.f}), tensor({int64_t{5}})},
                               {tensor({10.f, 20.f}), tensor({int64_t{6}})}};
    test::TensorGrid outputs = {{at::empty({2}), at::empty({1}, at::kDouble)},
                                {at::empty({2}), at::empty({1}, at::kDouble)}};
    test::all_reduce(ops, ReduceOp::kMean, inputs, outputs, {.bytes_per_pack = 3},
                     {.members = 2, .threads = threads});
    EXPECT_EQ(ops.reductions, 2) << "one member does it for all";
    EXPECT_EQ(ops.last_options.bytes_per_pack, 3);
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_TRUE(bit_equal(outputs[r][0], tensor({5.5f, 11.f})));
      EXPECT_TRUE(bit_equal(outputs[r][1], tensor({5.5})));
    }
    EXPECT_TRUE(bit_equal(inputs[0][0], tensor({1.f, 2.f}))) << "inputs are left alone";
  }
}

// Returns what the test sets.
class FixedOps final : public CrossDeviceOps {
 public:
  explicit FixedOps(at::Tensor result) : result_(std::move(result)) {}

 private:
  at::Tensor do_reduce(ReduceOp, const PerReplica<at::Tensor>&,
                       const CommunicationOptions&) override {
    return result_;
  }
  at::Tensor do_gather(const PerReplica<at::Tensor>&, const Devices&, int64_t,
                       const CommunicationOptions&) override {
    return result_;
  }

  at::Tensor result_;
};

TEST(CrossDeviceOps, ChecksWhatAnImplementationReturns) {
  const auto value = per_replica({tensor({1.f, 2.f}), tensor({3.f, 4.f})});
  const auto expect_refused = [&](const at::Tensor& result, const char* part) {
    FixedOps ops(result);
    for (const Destinations& destinations : {Destinations("CPU:0"), Destinations(value)}) {
      EXPECT_TUTTI_ERROR(ops.reduce(ReduceOp::kSum, value, destinations),
                         ErrorCode::kInvalidArgument, part,
                         "for kSum of float32[2]; it must return float32 of that shape");
    }
  };
  expect_refused(at::Tensor(), "CrossDeviceOps::do_reduce: the implementation returned undefined");
  expect_refused(tensor({1.f}), "returned float32[1]");
  expect_refused(tensor({1., 2.}), "returned float64[2]");
}

TEST(CrossDeviceOps, CopiesAnInputThatAnImplementationReturns) {
  const auto value = per_replica({tensor({1.f, 2.f}), tensor({3.f, 4.f})});
  FixedOps ops(value[1]);
  const at::Tensor reduced = ops.reduce(ReduceOp::kSum, value, "CPU:0")[0];
  EXPECT_TRUE(bit_equal(reduced, value[1]));
  EXPECT_FALSE(reduced.is_alias_of(value[1]));
  const at::Tensor gathered = ops.gather(value, "CPU:0", 0)[0];
  EXPECT_TRUE(bit_equal(gathered, value[1]));
  EXPECT_FALSE(gathered.is_alias_of(value[1]));
}

TEST(CrossDeviceOps, ReducesABatchByOneAllReduceWhenValuesStayWhereTheyAre) {
  // Counts calls of do_all_reduce, which the default turns into one do_reduce per tensor.
  class BatchOps final : public CrossDeviceOps {
   public:
    std::vector<size_t> batches;

   private:
    at::Tensor do_reduce(ReduceOp op, const PerReplica<at::Tensor>& value,
                         const CommunicationOptions&) override {
      return reduce_tree(op, std::vector<at::Tensor>(value.begin(), value.end()));
    }
    void do_all_reduce(const AllReduceBatch& batch, const CommunicationOptions& options) override {
      batches.push_back(batch.tensors());
      EXPECT_EQ(batch.members(), 1u);
      CrossDeviceOps::do_all_reduce(batch, options);
    }
  } ops;
  const auto value = per_replica({tensor({1.f}), tensor({2.f})});
  ops.batch_reduce(ReduceOp::kSum, {{value, value}, {value, value}, {value, value}});
  EXPECT_EQ(ops.batches, (std::vector<size_t>{3}));
  // They are reduced one by one as soon as a value goes elsewhere; the others still stay.
  ops.batches.clear();
  ops.batch_reduce(ReduceOp::kSum, {{value, value}, {value, "CPU:0"}, {value, value}});
  EXPECT_EQ(ops.batches, (std::vector<size_t>{1, 1}));
}

}  // namespace
}  // namespace tutti
