// SPDX-License-Identifier: Apache-2.0
//
// The rules around the tree: 16-bit floats, integers, what cannot be reduced, LibTorch's operators.

#include <bit>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <gtest/gtest.h>

#include "tutti/collectives/reduction_tree.h"
#include "tutti/nest/leaf.h"

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti {
namespace {

using test::bit_equal;
using test::tensor;

at::Tensor reduce_on_host(ReduceOp op, const std::vector<at::Tensor>& inputs) {
  std::vector<const void*> pointers;
  for (const at::Tensor& input : inputs) pointers.push_back(input.data_ptr());
  at::Tensor result = at::empty_like(inputs[0]);
  void* output = result.data_ptr();
  reduce_tree(op, inputs[0].scalar_type(), pointers, std::span<void* const>(&output, 1), 0,
              result.numel());
  return result;
}

TEST(ReductionTreeRules, AddsHalvesAsFloatAndRoundsOnce) {
  const auto half = [](float x) { return tensor({at::Half(x)}); };
  // 2048 + 1 is 2048 in float16.
  EXPECT_TRUE(
      bit_equal(reduce_on_host(ReduceOp::kSum, {half(2048), half(1), half(1)}), half(2050)));
  // 60000 + 60000 is infinite in float16, its mean is not.
  EXPECT_TRUE(bit_equal(reduce_on_host(ReduceOp::kMean, {half(60000), half(60000)}), half(60000)));
  const auto brain = [](float x) { return tensor({at::BFloat16(x)}); };
  EXPECT_TRUE(bit_equal(
      reduce_on_host(ReduceOp::kSum, {brain(256), brain(1), brain(1), brain(0), brain(0)}),
      brain(258)));
}

TEST(ReductionTreeRules, DividesAMeanOnceAtTheEnd) {
  // (1 + 1 + 1) / 3, not 1/3 + 1/3 + 1/3 = 1 - 2^-53.
  EXPECT_TRUE(bit_equal(reduce_on_host(ReduceOp::kMean, {tensor({7.}), tensor({7.}), tensor({7.})}),
                        tensor({7.})));
  EXPECT_TRUE(
      bit_equal(reduce_on_host(ReduceOp::kMean, {tensor({1.f}), tensor({0.f}), tensor({0.f})}),
                tensor({1.f / 3})));
}

TEST(ReductionTreeRules, WrapsIntegers) {
  EXPECT_TRUE(
      bit_equal(reduce_on_host(ReduceOp::kSum, {tensor({int8_t{100}}), tensor({int8_t{100}})}),
                tensor({int8_t{-56}})));
  EXPECT_TRUE(bit_equal(
      reduce_on_host(ReduceOp::kProduct, {tensor({int16_t{-32768}}), tensor({int16_t{-32768}})}),
      tensor({int16_t{0}})));
}

// The bits of a result may not depend on how the elements are cut into chunks.
TEST(ReductionTreeRules, KeepsTheBitsOfNaNsOfHalvesWhereverTheyStand) {
  for (const uint16_t bits : {0x7e00, 0xfe00, 0x7e01, 0x7d23, 0xffff}) {
    std::vector<at::Half> values(16, at::Half(1.f));
    for (at::Half& value : values) value.x = bits;
    std::vector<at::Half> ones(16, at::Half(1.f));
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const std::vector<const void*> inputs = {values.data(), ones.data()};
      std::vector<at::Half> whole(16);
      std::vector<at::Half> single(16);
      void* whole_output = whole.data();
      void* single_output = single.data();
      reduce_tree(op, at::kHalf, inputs, std::span<void* const>(&whole_output, 1), 0, 16);
      for (int64_t i = 0; i < 16; ++i) {
        reduce_tree(op, at::kHalf, inputs, std::span<void* const>(&single_output, 1), i, i + 1);
      }
      for (size_t i = 0; i < 16; ++i) {
        ASSERT_EQ(whole[i].x, single[i].x) << op << " of NaN " << std::hex << bits;
      }
    }
  }
}

TEST(ReductionTreeRules, RefusesBoolAndQuantisedValues) {
  for (const ReduceOp op : test::kAllOps) {
    EXPECT_TUTTI_ERROR(check_reducible("Strategy::reduce", op, at::kBool),
                       ErrorCode::kInvalidArgument,
                       message("Strategy::reduce: values of type bool cannot be reduced by ", op),
                       "cast it to uint8 or a float first");
    for (const at::ScalarType dtype : {at::kQInt8, at::kQUInt8, at::kQInt32}) {
      EXPECT_TUTTI_ERROR(check_reducible("who", op, dtype), ErrorCode::kInvalidArgument,
                         "who: values of type Q", "dequantise it first");
    }
  }
}

TEST(ReductionTreeRules, RefusesAMinimumOfComplexNumbers) {
  for (const at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      EXPECT_TUTTI_ERROR(check_reducible("who", op, dtype), ErrorCode::kInvalidArgument,
                         message("who: values of type ", dtype_name(dtype),
                                 " cannot be reduced by ", op, "; complex numbers have no order"));
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct}) {
      EXPECT_NO_THROW(check_reducible("who", op, dtype));
    }
  }
  EXPECT_TUTTI_ERROR(check_reducible("who", ReduceOp::kSum, at::kComplexHalf),
                     ErrorCode::kInvalidArgument, "cast it to a supported type first");
}

TEST(ReductionTreeRules, MakesTheMeanOfIntegersAFloat) {
  EXPECT_EQ(reduced_dtype(ReduceOp::kMean, at::kInt), at::kDouble);
  EXPECT_EQ(reduced_dtype(ReduceOp::kMean, at::kLong), at::kDouble);
  EXPECT_EQ(reduced_dtype(ReduceOp::kMean, at::kChar), at::kFloat);
  EXPECT_EQ(reduced_dtype(ReduceOp::kMean, at::kByte), at::kFloat);
  EXPECT_EQ(reduced_dtype(ReduceOp::kMean, at::kShort), at::kFloat);
  for (const ReduceOp op : test::kAllOps) {
    EXPECT_EQ(reduced_dtype(op, at::kHalf), at::kHalf);
    EXPECT_EQ(reduced_dtype(op, at::kComplexFloat), at::kComplexFloat);
    if (op != ReduceOp::kMean) {
      EXPECT_EQ(reduced_dtype(op, at::kChar), at::kChar);
    }
  }
}

TEST(ReductionTreeRules, ReportsImpossibleRequestsAsDefectsOfTheCaller) {
  int8_t value = 1;
  const void* input = &value;
  void* output = &value;
  const std::span<const void* const> inputs(&input, 1);
  const std::span<void* const> outputs(&output, 1);
  EXPECT_TUTTI_ERROR(reduce_tree(ReduceOp::kMean, at::kChar, inputs, outputs, 0, 1),
                     ErrorCode::kInternal, "reduced_dtype(op, dtype) == dtype");
  EXPECT_TUTTI_ERROR(reduce_tree(ReduceOp::kSum, at::kChar, {}, outputs, 0, 1),
                     ErrorCode::kInternal, "inputs.empty()");
  EXPECT_TUTTI_ERROR(reduce_tree(ReduceOp::kSum, at::kChar, inputs, {}, 0, 1), ErrorCode::kInternal,
                     "outputs.empty()");
  EXPECT_TUTTI_ERROR(reduce_tree(ReduceOp::kSum, at::kBool, inputs, outputs, 0, 1),
                     ErrorCode::kInternal, "no kernel for bool");
  EXPECT_TUTTI_ERROR(reduce_tree(ReduceOp::kSum, std::span<const at::Tensor>()),
                     ErrorCode::kInternal, "inputs.empty()");
}

TEST(ReductionTreeRules, GivesTheSameBitsByLibTorchsOperators) {
  for (const at::ScalarType dtype :
       {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kChar, at::kShort, at::kInt,
        at::kLong, at::kByte, at::kComplexFloat, at::kComplexDouble}) {
    for (size_t n = 1; n <= 17; ++n) {
      std::vector<at::Tensor> inputs;
      for (size_t r = 0; r < n; ++r) {
        inputs.push_back(test::random_tensor({7, 11}, dtype, 17 * n + r));
      }
      for (const ReduceOp op : test::kAllOps) {
        const bool integer_mean = reduced_dtype(op, dtype) != dtype;
        const bool complex = at::isComplexType(dtype);
        const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
        // LibTorch may multiply complex numbers by a different formula.
        if (integer_mean || (complex && (op == ReduceOp::kProduct || ordered))) continue;
        EXPECT_TRUE(bit_equal(reduce_tree(op, inputs), reduce_on_host(op, inputs)))
            << op << " of " << n << " " << dtype;
      }
    }
  }
}

TEST(ReductionTreeRules, NeitherDividesNorRoundsANode) {
  EXPECT_EQ(node_dtype(ReduceOp::kMax, at::kHalf), at::kFloat);
  EXPECT_EQ(node_dtype(ReduceOp::kMean, at::kChar), at::kLong);
  EXPECT_EQ(node_dtype(ReduceOp::kSum, at::kChar), at::kChar);
  EXPECT_EQ(node_dtype(ReduceOp::kMean, at::kDouble), at::kDouble);
  const std::vector<at::Tensor> halves = {tensor({at::Half(2048)}), tensor({at::Half(1)})};
  const at::Tensor node = reduce_node(ReduceOp::kMean, at::kHalf, halves);
  EXPECT_TRUE(bit_equal(node, tensor({2049.f})));
  EXPECT_TRUE(bit_equal(finish_tree(ReduceOp::kMean, at::kHalf, node, 3), tensor({at::Half(683)})));
  EXPECT_TRUE(bit_equal(finish_tree(ReduceOp::kSum, at::kHalf, node, 3), tensor({at::Half(2048)})));
}

TEST(ReductionTreeRules, NeedsNoMemoryForEmptyTensors) {
  const void* const inputs[] = {nullptr, nullptr};
  void* const outputs[] = {nullptr};
  for (const ReduceOp op : test::kAllOps) {
    EXPECT_NO_THROW(reduce_tree(op, at::kFloat, inputs, outputs, 0, 0)) << op;
  }
}

TEST(ReductionTreeRules, DoesNotWrapTheMeanOfIntegersAndKeepsItsFraction) {
  const std::vector<at::Tensor> bytes = {tensor({int8_t{127}, int8_t{-128}}),
                                         tensor({int8_t{127}, int8_t{-128}}),
                                         tensor({int8_t{126}, int8_t{1}})};
  EXPECT_TRUE(bit_equal(reduce_tree(ReduceOp::kMean, bytes), tensor({380.f / 3, -85.f})));
  const std::vector<at::Tensor> unsigned_bytes = {tensor({uint8_t{255}}), tensor({uint8_t{254}})};
  EXPECT_TRUE(bit_equal(reduce_tree(ReduceOp::kMean, unsigned_bytes), tensor({254.5f})));
  const std::vector<at::Tensor> shorts = {tensor({int16_t{32767}}), tensor({int16_t{32766}})};
  EXPECT_TRUE(bit_equal(reduce_tree(ReduceOp::kMean, shorts), tensor({32766.5f})));
  const std::vector<at::Tensor> ints = {tensor({2147483647}), tensor({2147483646})};
  EXPECT_TRUE(bit_equal(reduce_tree(ReduceOp::kMean, ints), tensor({2147483646.5})));
  const std::vector<at::Tensor> longs = {tensor({int64_t{3}}), tensor({int64_t{4}})};
  EXPECT_TRUE(bit_equal(reduce_tree(ReduceOp::kMean, longs), tensor({3.5})));
}

TEST(ReductionTreeRules, ReturnsANewTensorAndKeepsTheInputs) {
  const std::vector<at::Tensor> one = {tensor({1.f, 2.f})};
  for (const ReduceOp op : test::kAllOps) {
    const at::Tensor result = reduce_tree(op, one);
    EXPECT_NE(result.data_ptr(), one[0].data_ptr());
    EXPECT_TRUE(bit_equal(result, one[0])) << op;
  }
  const std::vector<at::Tensor> two = {tensor({1.f, 2.f}), tensor({10.f, 20.f})};
  EXPECT_TRUE(bit_equal(reduce_tree(ReduceOp::kSum, two), tensor({11.f, 22.f})));
  EXPECT_TRUE(bit_equal(two[0], tensor({1.f, 2.f})));
  EXPECT_TRUE(bit_equal(two[1], tensor({10.f, 20.f})));
}

std::string spelled_out(size_t first, size_t count) {
  if (count == 1) return std::to_string(first);
  const size_t left = std::bit_ceil(count) / 2;
  return "(" + spelled_out(first, left) + "+" + spelled_out(first + left, count - left) + ")";
}

TEST(ReductionTreeRules, ReducesScalarsByTheSameTree) {
  EXPECT_EQ(spelled_out(0, 5), "(((0+1)+(2+3))+4)");
  for (size_t n = 1; n <= 17; ++n) {
    std::vector<std::string> values;
    for (size_t i = 0; i < n; ++i) values.push_back(std::to_string(i));
    const std::string tree = reduce_tree_scalars(
        std::span(values),
        [](const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; });
    EXPECT_EQ(tree, spelled_out(0, n));
  }
}

}  // namespace
}  // namespace tutti
