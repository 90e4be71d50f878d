// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/indexed_slices.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti {
namespace {

using test::bit_equal;
using test::tensor;

constexpr ErrorCode kInvalidSlices = ErrorCode::kInvalidArgument;

TEST(IndexedSlices, KeepsItsParts) {
  const at::Tensor values = tensor({1.f, 2.f, 3.f, 4.f}).reshape({2, 2});
  const at::Tensor indices = tensor({3, 1});
  const IndexedSlices slices(values, indices, {5, 2});
  EXPECT_EQ(slices.values().data_ptr(), values.data_ptr()) << "shared, not copied";
  EXPECT_TRUE(bit_equal(slices.indices(), indices));
  EXPECT_EQ(slices.dense_shape(), (std::vector<int64_t>{5, 2}));
  EXPECT_TRUE(IndexedSlices(values, indices).dense_shape().empty());
}

TEST(IndexedSlices, ToDenseAddsRowsWithTheSameIndex) {
  const IndexedSlices slices(tensor({1., 2., 10., 20., 100., 200.}).reshape({3, 2}),
                             tensor({int64_t{2}, int64_t{0}, int64_t{2}}), {4, 2});
  EXPECT_TRUE(
      bit_equal(slices.to_dense(), tensor({10., 20., 0., 0., 101., 202., 0., 0.}).reshape({4, 2})));
}

TEST(IndexedSlices, ToDenseTakesInt32Indices) {
  const IndexedSlices slices(tensor({5.f, 7.f}), tensor({1, 1}), {3});
  EXPECT_TRUE(bit_equal(slices.to_dense(), tensor({0.f, 12.f, 0.f})));
}

TEST(IndexedSlices, ToDenseOfNoRowsIsZero) {
  const IndexedSlices slices(at::empty({0, 2}), at::empty({0}, at::kLong), {2, 2});
  EXPECT_TRUE(bit_equal(slices.to_dense(), tensor({0.f, 0.f, 0.f, 0.f}).reshape({2, 2})));
}

TEST(IndexedSlices, ToDenseNeedsTheShape) {
  const IndexedSlices slices(tensor({1.f}), tensor({0}));
  EXPECT_TUTTI_ERROR(slices.to_dense(), ErrorCode::kFailedPrecondition,
                     "IndexedSlices::to_dense: the dense shape is unknown");
}

TEST(IndexedSlices, RejectsUndefinedTensors) {
  EXPECT_TUTTI_ERROR(IndexedSlices(at::Tensor(), tensor({0})), kInvalidSlices,
                     "IndexedSlices: values or indices is an undefined tensor");
  EXPECT_TUTTI_ERROR(IndexedSlices(tensor({1.f}), at::Tensor()), kInvalidSlices, "undefined");
}

TEST(IndexedSlices, RejectsIndicesThatAreNotAVectorOfIntegers) {
  EXPECT_TUTTI_ERROR(IndexedSlices(tensor({1.f}), tensor({0.f})), kInvalidSlices,
                     "indices must be a vector of int32 or int64", "[1]");
  EXPECT_TUTTI_ERROR(IndexedSlices(tensor({1.f}), tensor({int16_t{0}})), kInvalidSlices,
                     "indices must be a vector of int32 or int64");
  EXPECT_TUTTI_ERROR(IndexedSlices(tensor({1.f}), tensor({0}).reshape({1, 1})), kInvalidSlices,
                     "indices must be a vector", "[1, 1]");
}

TEST(IndexedSlices, RejectsValuesWithoutARowForEachIndex) {
  EXPECT_TUTTI_ERROR(IndexedSlices(tensor({1.f, 2.f, 3.f}), tensor({0, 1})), kInvalidSlices,
                     "values of shape [3] do not have one row for each of the 2 indices");
  EXPECT_TUTTI_ERROR(IndexedSlices(test::scalar(1.f), tensor({0})), kInvalidSlices,
                     "values of shape []");
}

TEST(IndexedSlices, RejectsRowsThatDoNotFitTheDenseShape) {
  const at::Tensor values = tensor({1.f, 2.f}).reshape({1, 2});
  EXPECT_TUTTI_ERROR(IndexedSlices(values, tensor({0}), {4, 3}), kInvalidSlices,
                     "rows of shape [2] do not fit dense_shape [4, 3]");
  EXPECT_TUTTI_ERROR(IndexedSlices(values, tensor({0}), {4}), kInvalidSlices,
                     "do not fit dense_shape [4]");
}

TEST(IndexedSlices, ToDenseRejectsRowsOutOfRange) {
  for (const int64_t row : {-1, 3}) {
    const IndexedSlices slices(at::ones({2, 2}), at::tensor({int64_t{0}, row}), {3, 2});
    EXPECT_TUTTI_ERROR(slices.to_dense(), ErrorCode::kInvalidArgument,
                       "IndexedSlices::to_dense: there is no row " + std::to_string(row), "[3, 2]",
                       "from 0 to 2");
  }
}

}  // namespace
}  // namespace tutti
