// SPDX-License-Identifier: Apache-2.0
//
// Leaves and structures of values; aggregate_test.cc has the limits of structs.

#include "tutti/nest/nest.h"

#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>

#include "tests/support/tensors.h"

template <>
struct tutti::nest_fields<torch::data::Example<>> {
  static auto of(auto& example) { return std::tie(example.data, example.target); }
};

namespace tutti {
namespace {

using test::tensor;

std::vector<void*> addresses(const LeafList& leaves) {
  std::vector<void*> result;
  for (const Leaf& leaf : leaves) result.push_back(leaf.data);
  return result;
}

using Addresses = std::vector<void*>;

TEST(Nest, ATensorIsItsOwnLeaf) {
  at::Tensor value = tensor({1.f});
  const LeafList leaves = leaves_of(value);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves[0].kind, Leaf::Kind::kTensor);
  EXPECT_EQ(&leaves[0].tensor(), &value);
  EXPECT_EQ(structure_of(value), "");
}

TEST(Nest, DescribesEveryKindOfLeaf) {
  std::tuple value(tensor({1}), IndexedSlices(tensor({1.f}), tensor({int64_t{0}})),
                   std::string("s"), true, int16_t{1}, uint8_t{2}, 1.5f, 2.5);
  const LeafList leaves = leaves_of(value);
  ASSERT_EQ(leaves.size(), 8u);
  EXPECT_EQ(leaves[0].describe(), "int32[1]");
  EXPECT_EQ(leaves[1].describe(), "IndexedSlices of float32[1]");
  EXPECT_EQ(leaves[2].describe(), "string");
  EXPECT_EQ(leaves[3].describe(), "bool scalar");
  EXPECT_EQ(leaves[4].describe(), "int16 scalar");
  EXPECT_EQ(leaves[5].describe(), "uint8 scalar");
  EXPECT_EQ(leaves[6].describe(), "float32 scalar");
  EXPECT_EQ(leaves[7].describe(), "float64 scalar");
  EXPECT_EQ(&leaves[1].slices(), &std::get<1>(value));
  EXPECT_EQ(&leaves[2].text(), &std::get<2>(value));
}

TEST(Nest, LeavesPointIntoTheValue) {
  std::pair<at::Tensor, double> value(tensor({1.f}), 2.0);
  const LeafList leaves = leaves_of(value);
  leaves[0].tensor() = tensor({7.f});
  visit_scalar(leaves[1], [](auto& x) { x = 9; });
  EXPECT_TRUE(test::bit_equal(value.first, tensor({7.f})));
  EXPECT_EQ(value.second, 9.0);
}

TEST(Nest, AConstValueHasTheSameLeaves) {
  const std::tuple<at::Tensor, int> value(tensor({1.f}), 2);
  EXPECT_EQ(addresses(leaves_of(value)),
            addresses(leaves_of(const_cast<std::tuple<at::Tensor, int>&>(value))));
}

TEST(Nest, TuplesPairsAndArraysGoInOrder) {
  std::tuple<int, std::pair<float, double>, std::array<int, 3>> value{};
  auto& [a, b, c] = value;
  EXPECT_EQ(addresses(leaves_of(value)), (Addresses{&a, &b.first, &b.second, &c[0], &c[1], &c[2]}));
  EXPECT_EQ(structure_of(value), "") << "the type fixes the structure";
}

TEST(Nest, VectorsShowTheirLength) {
  std::vector<std::vector<int>> value = {{1, 2}, {}, {3}};
  EXPECT_EQ(addresses(leaves_of(value)), (Addresses{&value[0][0], &value[0][1], &value[2][0]}));
  EXPECT_EQ(structure_of(value), "[3 [2 [0 [1 ");
  EXPECT_NE(structure_of(value), structure_of(std::vector<std::vector<int>>{{1}, {2, 3}, {}}));
}

TEST(Nest, OptionalsShowWhetherTheyHoldAValue) {
  std::pair<std::optional<float>, std::optional<at::Tensor>> value{std::nullopt, tensor({1.f})};
  EXPECT_EQ(addresses(leaves_of(value)), (Addresses{&*value.second}));
  EXPECT_EQ(structure_of(value), "?0 ?1 ");
}

TEST(Nest, MapsGoInTheOrderOfTheirKeys) {
  std::map<std::string, int> value = {{"b", 2}, {"a", 1}, {"c", 3}};
  EXPECT_EQ(addresses(leaves_of(value)), (Addresses{&value["a"], &value["b"], &value["c"]}));
  EXPECT_EQ(structure_of(value), structure_of(std::map<std::string, int>(value)));
  EXPECT_NE(structure_of(value), structure_of(std::map<std::string, int>{{"a", 1}, {"b", 2}}));
  EXPECT_NE(structure_of(value),
            structure_of(std::map<std::string, int>{{"a", 1}, {"b", 2}, {"d", 3}}));
}

TEST(Nest, UnorderedMapsGoInTheOrderOfTheirKeysToo) {
  std::unordered_map<std::string, int> forward(4);
  std::unordered_map<std::string, int> backward(997);
  for (int i = 0; i < 50; ++i) forward["key" + std::to_string(10 + i)] = i;
  for (int i = 49; i >= 0; --i) backward["key" + std::to_string(10 + i)] = i;
  const LeafList a = leaves_of(forward);
  const LeafList b = leaves_of(backward);
  ASSERT_EQ(a.size(), 50u);
  ASSERT_EQ(b.size(), 50u);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(*static_cast<int*>(a[i].data), static_cast<int>(i));
    EXPECT_EQ(*static_cast<int*>(b[i].data), static_cast<int>(i));
  }
  EXPECT_EQ(structure_of(forward), structure_of(backward));
}

TEST(Nest, DistinguishesKeysThatContainSeparators) {
  using Map = std::map<std::string, int>;
  EXPECT_NE(structure_of(Map{{"a", 1}, {"b c", 2}}), structure_of(Map{{"a b", 1}, {"c", 2}}));
  EXPECT_NE(structure_of(std::vector<Map>{{{"a [0", 1}}, {}}),
            structure_of(std::vector<Map>{{{"a", 1}}, {}}));
}

struct Inner {
  at::Tensor loss;
  std::vector<double> parts;
};
struct Outer {
  int step = 0;
  Inner inner;
  std::map<std::string, Inner> named;
  std::optional<Inner> last = std::nullopt;
};

TEST(Nest, SplitsStructsIntoFields) {
  Outer value{3, {tensor({1.f}), {1, 2}}, {{"x", {tensor({2.f}), {3}}}}, Inner{tensor({3.f}), {}}};
  EXPECT_EQ(addresses(leaves_of(value)),
            (Addresses{&value.step, &value.inner.loss, &value.inner.parts[0], &value.inner.parts[1],
                       &value.named["x"].loss, &value.named["x"].parts[0], &value.last->loss}));
  EXPECT_EQ(structure_of(value), structure_of(Outer(value)));
  Outer other = value;
  other.last.reset();
  EXPECT_NE(structure_of(value), structure_of(other));
}

TEST(Nest, SplitsThirdPartyTypesByNestFields) {
  torch::data::Example<> example(tensor({1.f}), tensor({2}));
  EXPECT_EQ(addresses(leaves_of(example)), (Addresses{&example.data, &example.target}));
  const torch::data::Example<>& constant = example;
  EXPECT_EQ(leaves_of(constant).size(), 2u);
  std::vector<torch::data::Example<>> batch = {example, example};
  EXPECT_EQ(leaves_of(batch).size(), 4u);
  EXPECT_EQ(structure_of(batch), "[2 ");
}

TEST(Nest, RejectsOtherTypes) {
  EXPECT_FALSE(Nest<std::vector<bool>>);
  EXPECT_FALSE(Nest<long double>);
  EXPECT_FALSE(Nest<wchar_t>);
  EXPECT_FALSE(Nest<char16_t>);
  EXPECT_FALSE(Nest<char32_t>);
  EXPECT_FALSE(Nest<int*>);
  EXPECT_FALSE(Nest<const char*>);
  EXPECT_FALSE(Nest<std::nullptr_t>);
  EXPECT_FALSE(Nest<void>);
  EXPECT_FALSE(Nest<at::Tensor&>);
  EXPECT_FALSE(Nest<std::set<std::string>>);
  EXPECT_FALSE((Nest<std::map<int, float>>));
  EXPECT_FALSE(Nest<std::tuple<>>);
  EXPECT_FALSE(Nest<at::ScalarType>);
  EXPECT_FALSE((Nest<std::tuple<at::Tensor, int*>>));
  EXPECT_FALSE((Nest<std::pair<long double, int>>));
  EXPECT_FALSE((Nest<std::array<int*, 2>>));
  EXPECT_FALSE(Nest<std::optional<long double>>);
  EXPECT_FALSE((Nest<std::map<std::string, std::vector<bool>>>));
}

TEST(Nest, AcceptsTheDocumentedTypes) {
  EXPECT_TRUE(Nest<char>);
  EXPECT_TRUE(Nest<signed char>);
  EXPECT_TRUE(Nest<unsigned long long>);
  EXPECT_TRUE(Nest<std::vector<uint8_t>>);
  EXPECT_TRUE((Nest<std::array<std::vector<std::optional<std::string>>, 2>>));
  EXPECT_TRUE((Nest<std::unordered_map<std::string, std::tuple<at::Tensor>>>));
  EXPECT_TRUE(Nest<torch::data::Example<>>);
}

template <class T>
void expect_scalar_visited(T value) {
  T copy = value;
  const LeafList leaves = leaves_of(copy);
  int calls = 0;
  visit_scalar(leaves[0], [&](auto& x) {
    using Visited = std::remove_reference_t<decltype(x)>;
    EXPECT_EQ(sizeof(Visited), sizeof(T));
    EXPECT_EQ(std::is_signed_v<Visited>, std::is_signed_v<T>);
    EXPECT_EQ(std::is_floating_point_v<Visited>, std::is_floating_point_v<T>);
    EXPECT_EQ((std::is_same_v<Visited, bool>), (std::is_same_v<T, bool>));
    EXPECT_EQ(static_cast<T>(x), value);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

TEST(Leaf, ScalarsAreVisitedAsTheirOwnType) {
  expect_scalar_visited<bool>(true);
  expect_scalar_visited<int8_t>(-7);
  expect_scalar_visited<uint8_t>(250);
  expect_scalar_visited<int16_t>(-700);
  expect_scalar_visited<uint16_t>(65000);
  expect_scalar_visited<int32_t>(-70000);
  expect_scalar_visited<uint32_t>(4000000000u);
  expect_scalar_visited<int64_t>(-1ll << 40);
  expect_scalar_visited<uint64_t>(~0ull);
  expect_scalar_visited<long long>(-1);
  expect_scalar_visited<float>(0.5f);
  expect_scalar_visited<double>(0.1);
}

TEST(Leaf, IgnoresLeavesThatAreNotScalars) {
  std::pair<at::Tensor, std::string> value(tensor({1.f}), "s");
  for (const Leaf& leaf : leaves_of(value)) visit_scalar(leaf, [](auto&) { FAIL(); });
}

TEST(Leaf, DtypesHaveTheNamesOfNumPy) {
  EXPECT_EQ(dtype_name(at::kByte), "uint8");
  EXPECT_EQ(dtype_name(at::kChar), "int8");
  EXPECT_EQ(dtype_name(at::kShort), "int16");
  EXPECT_EQ(dtype_name(at::kInt), "int32");
  EXPECT_EQ(dtype_name(at::kLong), "int64");
  EXPECT_EQ(dtype_name(at::kHalf), "float16");
  EXPECT_EQ(dtype_name(at::kBFloat16), "bfloat16");
  EXPECT_EQ(dtype_name(at::kFloat), "float32");
  EXPECT_EQ(dtype_name(at::kDouble), "float64");
  EXPECT_EQ(dtype_name(at::kComplexFloat), "complex64");
  EXPECT_EQ(dtype_name(at::kComplexDouble), "complex128");
  EXPECT_EQ(dtype_name(at::kBool), "bool");
  EXPECT_EQ(dtype_name(at::kQInt8), "QInt8");
}

TEST(Leaf, DescribesTensors) {
  EXPECT_EQ(describe(tensor({1.f, 2.f}).reshape({1, 2})), "float32[1, 2]");
  EXPECT_EQ(describe(test::scalar(1)), "int32[]");
  EXPECT_EQ(describe(at::Tensor()), "undefined tensor");
}

}  // namespace
}  // namespace tutti
