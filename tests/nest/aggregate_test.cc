// SPDX-License-Identifier: Apache-2.0
//
// Which structs are split into fields, and which are rejected instead of misread.

#include <array>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "tutti/nest/nest.h"
#include "tutti/nest/print.h"

namespace tutti {
namespace {

// clang-format off
struct F1 { int a; };
struct F2 { int a, b; };
struct F3 { int a, b, c; };
struct F4 { int a, b, c, d; };
struct F5 { int a, b, c, d, e; };
struct F6 { int a, b, c, d, e, f; };
struct F7 { int a, b, c, d, e, f, g; };
struct F8 { int a, b, c, d, e, f, g, h; };
struct F9 { int a, b, c, d, e, f, g, h, i; };
struct F10 { int a, b, c, d, e, f, g, h, i, j; };
struct F11 { int a, b, c, d, e, f, g, h, i, j, k; };
struct F12 { int a, b, c, d, e, f, g, h, i, j, k, l; };
struct F13 { int a, b, c, d, e, f, g, h, i, j, k, l, m; };
struct F14 { int a, b, c, d, e, f, g, h, i, j, k, l, m, n; };
struct F15 { int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o; };
struct F16 { int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p; };
struct F17 { int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q; };
struct F18 { int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r; };
// clang-format on

template <class T>
class AggregateSizes : public ::testing::Test {};
using Sizes =
    ::testing::Types<F1, F2, F3, F4, F5, F6, F7, F8, F9, F10, F11, F12, F13, F14, F15, F16>;
TYPED_TEST_SUITE(AggregateSizes, Sizes);

TYPED_TEST(AggregateSizes, HasEveryFieldOnceAndInOrder) {
  static_assert(Nest<TypeParam>);
  TypeParam value{};
  const LeafList leaves = leaves_of(value);
  ASSERT_EQ(leaves.size(), sizeof(TypeParam) / sizeof(int));
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_EQ(leaves[i].data, reinterpret_cast<int*>(&value) + i);
  }
}

struct Rich {
  at::Tensor tensor;
  std::optional<at::Tensor> maybe;
  std::string name = "name";
  std::vector<at::Tensor> list;
  std::map<std::string, float> named;
  std::array<double, 2> two{1, 2};
  std::tuple<int, float> parts{};
  std::pair<F2, bool> nested{};
  std::optional<double> number = 0.5;
};

TEST(Aggregate, CountsFieldsOfEveryKind) {
  Rich value;
  value.list.resize(2);
  value.named["x"] = 1;
  std::vector<void*> expected = {&value.tensor,
                                 &value.name,
                                 &value.list[0],
                                 &value.list[1],
                                 &value.named["x"],
                                 &value.two[0],
                                 &value.two[1],
                                 &std::get<0>(value.parts),
                                 &std::get<1>(value.parts),
                                 &value.nested.first.a,
                                 &value.nested.first.b,
                                 &value.nested.second,
                                 &*value.number};
  const LeafList leaves = leaves_of(value);
  ASSERT_EQ(leaves.size(), expected.size());
  for (size_t i = 0; i < leaves.size(); ++i) EXPECT_EQ(leaves[i].data, expected[i]) << i;
}

struct ArrayOfTwoFirst {
  std::array<at::Tensor, 2> pair;
  at::Tensor after;
};
struct StructFirst {
  F3 first;
  at::Tensor after;
};
struct NestedArray {
  std::array<std::array<int, 2>, 3> grid;
  int after = 0;
};

TEST(Aggregate, CountsANestedAggregateAsOneField) {
  ArrayOfTwoFirst arrays;
  EXPECT_EQ(leaves_of(arrays).size(), 3u);
  EXPECT_EQ(leaves_of(arrays)[2].data, &arrays.after);
  StructFirst structs{};
  EXPECT_EQ(leaves_of(structs).size(), 4u);
  EXPECT_EQ(leaves_of(structs)[3].data, &structs.after);
  NestedArray grid{};
  EXPECT_EQ(leaves_of(grid).size(), 7u);
  EXPECT_EQ(leaves_of(grid)[6].data, &grid.after);
}

struct Empty {};
struct Base {
  at::Tensor base;
};
struct Derived : Base {
  at::Tensor derived;
};
struct OnlyBase : Base {};
struct EmptyBase : Empty {
  at::Tensor field;
};
struct CArray {
  at::Tensor array[2];
};
struct CArrayLast {
  at::Tensor first;
  at::Tensor array[2];
};
struct CArrayFirst {
  float array[3];
  at::Tensor last;
};
struct CArrayOfOne {
  float array[1];
};
struct CArrayOfArrays {
  int array[2][2];
  int last;
};
struct ConstField {
  const at::Tensor field;
};
struct ConstScalar {
  int first;
  const int second;
};
struct Reference {
  at::Tensor& field;
};
struct ConstReference {
  int first;
  const at::Tensor& field;
};
struct RvalueReference {
  at::Tensor&& field;
};
struct Pointer {
  int first;
  int* field;
};
struct WithConstructor {
  explicit WithConstructor(int x) : field(x) {}
  int field;
};
class Private {
 public:
  int first = 0;

 private:
  [[maybe_unused]] int second_ = 0;
};
struct Bits {
  std::vector<bool> bits;
};
union Union {
  int a;
  float b;
};

TEST(Aggregate, RejectsStructsBeyondTheLimits) {
  EXPECT_FALSE(Nest<Empty>);
  EXPECT_FALSE(Nest<F17>);
  EXPECT_FALSE(Nest<F18>);
  EXPECT_FALSE(Nest<WithConstructor>);
  EXPECT_FALSE(Nest<Private>);
  EXPECT_FALSE(Nest<Pointer>);
  EXPECT_FALSE(Nest<Bits>);
  EXPECT_FALSE(Nest<Union>);
}

TEST(Aggregate, RejectsBaseClasses) {
  EXPECT_FALSE(Nest<Derived>);
  EXPECT_FALSE(Nest<OnlyBase>);
  EXPECT_FALSE(Nest<EmptyBase>);
}

TEST(Aggregate, RejectsCArrays) {
  EXPECT_FALSE(Nest<CArray>);
  EXPECT_FALSE(Nest<CArrayLast>);
  EXPECT_FALSE(Nest<CArrayFirst>);
  EXPECT_FALSE(Nest<CArrayOfOne>);
  EXPECT_FALSE(Nest<CArrayOfArrays>);
}

TEST(Aggregate, RejectsConstAndReferenceFields) {
  EXPECT_FALSE(Nest<ConstField>);
  EXPECT_FALSE(Nest<ConstScalar>);
  EXPECT_FALSE(Nest<Reference>);
  EXPECT_FALSE(Nest<ConstReference>);
  EXPECT_FALSE(Nest<RvalueReference>);
}

TEST(Aggregate, RejectsWhatHoldsARejectedStruct) {
  EXPECT_FALSE(Nest<std::vector<CArray>>);
  EXPECT_FALSE((Nest<std::pair<int, Derived>>));
  EXPECT_FALSE(Nest<std::optional<ConstField>>);
}

}  // namespace
}  // namespace tutti

// A user's namespace whose functions argument-dependent lookup would prefer. It finds LibTorch's
// own flatten, stack, split, ... for tensors in the same way.
namespace greedy {

struct Batch {
  at::Tensor x, y;
};
struct NotANest {
  int* pointer;
};

template <class... T>
void flatten(T&&...) = delete;
template <class... T>
void stack(T&&...) = delete;
template <class... T>
void split(T&&...) = delete;
template <class... T>
void select(T&&...) = delete;
template <class... T>
void gather(T&&...) = delete;
template <class... T>
void slice(T&&...) = delete;
template <class... T>
void cat(T&&...) = delete;
template <class... T>
void visit(T&&...) = delete;
template <class... T>
void leaf(T&&...) = delete;
template <class... T>
void describe(T&&...) = delete;
template <class... T>
void message(T&&...) = delete;
template <class... T>
void fields_of(T&&...) = delete;
template <class... T>
void aggregate_fields(T&&...) = delete;

}  // namespace greedy

namespace tutti {
namespace {

TEST(Nest, IgnoresFunctionsOfTheSameNameNextToAType) {
  std::vector<greedy::Batch> value(2);
  EXPECT_EQ(leaves_of(value).size(), 4u);
  EXPECT_EQ(leaves_of(value)[3].data, &value[1].y);
  EXPECT_EQ(structure_of(value), "[2 ");
  std::ostringstream out;
  internal::print_value(out, value);
  EXPECT_EQ(out.str(),
            "[(Tensor(undefined), Tensor(undefined)), (Tensor(undefined), Tensor(undefined))]");
}

TEST(Nest, DoesNotCallLibTorchsFlatten) {
  at::Tensor grid = at::Tensor();
  std::vector<at::Tensor> list(3);
  EXPECT_EQ(leaves_of(grid).size(), 1u);
  EXPECT_EQ(leaves_of(list).size(), 3u);
}

}  // namespace
}  // namespace tutti
