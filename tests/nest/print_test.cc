// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/print.h"

#include <array>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <gtest/gtest.h>

#include "tests/support/tensors.h"

namespace tutti {
namespace {

using test::scalar;
using test::tensor;

template <class T>
std::string printed(const T& value) {
  std::ostringstream out;
  internal::print_value(out, value);
  return out.str();
}

TEST(Print, ShowsValueShapeAndDtype) {
  EXPECT_EQ(to_text(tensor({5.f, 6.f})), "Tensor([5. 6.], shape=(2,), dtype=float32)");
  EXPECT_EQ(to_text(tensor({1, 2, 3, 4}).reshape({2, 2})),
            "Tensor([[1 2] [3 4]], shape=(2, 2), dtype=int32)");
  EXPECT_EQ(to_text(tensor({1, 2}).reshape({1, 2, 1})),
            "Tensor([[[1] [2]]], shape=(1, 2, 1), dtype=int32)");
}

TEST(Print, PrintsAScalarAsABareNumber) {
  EXPECT_EQ(to_text(scalar(5.f)), "Tensor(5.0, shape=(), dtype=float32)");
  EXPECT_EQ(to_text(scalar(-3)), "Tensor(-3, shape=(), dtype=int32)");
  EXPECT_EQ(to_text(scalar(true)), "Tensor(true, shape=(), dtype=bool)");
}

TEST(Print, KnowsEveryDtype) {
  EXPECT_EQ(to_text(tensor({at::Half(1.5f)})), "Tensor([1.5], shape=(1,), dtype=float16)");
  EXPECT_EQ(to_text(tensor({at::BFloat16(-2.f)})), "Tensor([-2.], shape=(1,), dtype=bfloat16)");
  EXPECT_EQ(to_text(tensor({0.1})), "Tensor([0.1], shape=(1,), dtype=float64)");
  EXPECT_EQ(to_text(tensor({int8_t{-128}})), "Tensor([-128], shape=(1,), dtype=int8)");
  EXPECT_EQ(to_text(tensor({uint8_t{255}})), "Tensor([255], shape=(1,), dtype=uint8)");
  EXPECT_EQ(to_text(tensor({int16_t{-300}})), "Tensor([-300], shape=(1,), dtype=int16)");
  EXPECT_EQ(to_text(tensor({int64_t{1} << 60})),
            "Tensor([1152921504606846976], shape=(1,), dtype=int64)");
  EXPECT_EQ(to_text(tensor({true, false})), "Tensor([true false], shape=(2,), dtype=bool)");
  EXPECT_EQ(to_text(tensor({c10::complex<float>(1, 2), c10::complex<float>(0.5, -3)})),
            "Tensor([(1+2j) (0.5-3j)], shape=(2,), dtype=complex64)");
  EXPECT_EQ(to_text(tensor({c10::complex<double>(-1, 0)})),
            "Tensor([(-1+0j)], shape=(1,), dtype=complex128)");
}

TEST(Print, FloatsReadBackAsTheSameNumber) {
  EXPECT_EQ(to_text(tensor({0.1f, 16777216.f, 1e-20f, 1.f / 3})),
            "Tensor([0.1 16777216. 1e-20 0.33333334], shape=(4,), dtype=float32)");
  EXPECT_EQ(to_text(tensor({1.0 / 3, 1e300})),
            "Tensor([0.3333333333333333 1e+300], shape=(2,), dtype=float64)");
}

TEST(Print, ComplexNumbersReadBackAsTheSameNumber) {
  EXPECT_EQ(to_text(scalar(c10::complex<double>(0.12345678901, -1.000000001))),
            "Tensor((0.12345678901-1.000000001j), shape=(), dtype=complex128)");
  EXPECT_EQ(to_text(scalar(c10::complex<double>(1, -0.0))),
            "Tensor((1-0j), shape=(), dtype=complex128)");
}

TEST(Print, PrintsNansAndInfinities) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(to_text(tensor({nan, inf, -inf, -0.f})),
            "Tensor([nan inf -inf -0.], shape=(4,), dtype=float32)");
  EXPECT_EQ(to_text(scalar(nan)), "Tensor(nan, shape=(), dtype=float32)");
  EXPECT_EQ(to_text(tensor({at::Half(inf)})), "Tensor([inf], shape=(1,), dtype=float16)");
}

TEST(Print, PrintsEmptyAndUndefinedTensors) {
  EXPECT_EQ(to_text(at::Tensor()), "Tensor(undefined)");
  EXPECT_EQ(to_text(at::empty({0})), "Tensor([], shape=(0,), dtype=float32)");
  EXPECT_EQ(to_text(at::empty({2, 0})), "Tensor([[] []], shape=(2, 0), dtype=float32)");
}

TEST(Print, PrintsTensorsThatAreNotPlainMemory) {
  const at::Tensor grid = tensor({1., 2., 3., 4.}).reshape({2, 2});
  EXPECT_EQ(to_text(grid.t()), "Tensor([[1. 3.] [2. 4.]], shape=(2, 2), dtype=float64)");
  EXPECT_EQ(to_text(tensor({1.}).requires_grad_()), "Tensor([1.], shape=(1,), dtype=float64)");
  EXPECT_EQ(to_text(at::quantize_per_tensor(tensor({1.f, 2.5f}), 0.5, 0, at::kQInt8)),
            "Tensor([1 2.5], shape=(2,), dtype=QInt8)");
  EXPECT_EQ(to_text(at::empty({2}, at::TensorOptions().device(at::kMeta))),
            "Tensor(..., shape=(2,), dtype=float32)");
  EXPECT_EQ(to_text(tensor({1.f, 0.f}).to_sparse()), "Tensor(..., shape=(2,), dtype=float32)");
}

TEST(Print, AbbreviatesMoreThanAThousandElements) {
  const std::string full = to_text(at::arange(1000, at::kLong));
  EXPECT_EQ(full.find("..."), std::string::npos);
  EXPECT_NE(full.find(" 500 "), std::string::npos);
  EXPECT_EQ(to_text(at::arange(1001, at::kLong)),
            "Tensor([0 1 2 ... 998 999 1000], shape=(1001,), dtype=int64)");
  EXPECT_EQ(to_text(at::arange(1200, at::kLong).reshape({2, 600})),
            "Tensor([[0 1 2 ... 597 598 599] [600 601 602 ... 1197 1198 1199]], "
            "shape=(2, 600), dtype=int64)");
  EXPECT_EQ(to_text(at::arange(1400, at::kLong).reshape({700, 2})),
            "Tensor([[0 1] [2 3] [4 5] ... [1394 1395] [1396 1397] [1398 1399]], "
            "shape=(700, 2), dtype=int64)");
}

TEST(Print, IndexedSlicesShowTheirParts) {
  EXPECT_EQ(to_text(IndexedSlices(tensor({1.f}), tensor({2}), {4})),
            "IndexedSlices(indices=Tensor([2], shape=(1,), dtype=int32), "
            "values=Tensor([1.], shape=(1,), dtype=float32), dense_shape=(4,))");
}

TEST(Print, NestsAreTuplesListsAndMaps) {
  EXPECT_EQ(printed(std::tuple(1, std::string("a"), true)), "(1, 'a', true)");
  EXPECT_EQ(printed(std::pair(0.5, int8_t{65})), "(0.5, 65)");
  EXPECT_EQ(printed(std::array<int, 2>{1, 2}), "(1, 2)");
  EXPECT_EQ(printed(std::vector<std::vector<int>>{{1, 2}, {}, {3}}), "[[1, 2], [], [3]]");
  EXPECT_EQ(printed(std::map<std::string, std::vector<int>>{{"b", {2}}, {"a", {1, 3}}}),
            "{'a': [1, 3], 'b': [2]}");
  EXPECT_EQ(printed(std::map<std::string, int>{}), "{}");
  EXPECT_EQ(printed(std::tuple(std::optional<int>(), std::optional<int>(3), 4)), "(nullopt, 3, 4)");
  EXPECT_EQ(printed(std::vector{tensor({1.f})}), "[Tensor([1.], shape=(1,), dtype=float32)]");
}

struct Result {
  at::Tensor loss;
  int count;
  std::map<std::string, double> more;
};

TEST(Print, StructsAreTuples) {
  EXPECT_EQ(printed(Result{scalar(0.5f), 3, {{"x", 1.5}}}),
            "(Tensor(0.5, shape=(), dtype=float32), 3, {'x': 1.5})");
}

struct WithOperator {
  int* pointer = nullptr;
  friend std::ostream& operator<<(std::ostream& out, const WithOperator&) { return out << "mine"; }
};
struct WithNothing {
  int* pointer = nullptr;
};

TEST(Print, OtherTypesArePrintedByTheirOperatorOrByTheirType) {
  EXPECT_EQ(printed(WithOperator{}), "mine");
  const WithNothing value;
  std::ostringstream address;
  address << static_cast<const void*>(&value);
  const std::string text = printed(value);
  EXPECT_EQ(text.front(), '<');
  EXPECT_NE(text.find("WithNothing at " + address.str() + ">"), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti
