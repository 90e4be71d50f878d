// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/per_replica.h"

#include <array>
#include <iterator>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti {
namespace {

using test::bit_equal;
using test::tensor;

TEST(PerReplica, HoldsOneComponentForEachReplica) {
  PerReplica<int> value(std::vector{10, 20, 30});
  EXPECT_EQ(value.size(), 3u);
  EXPECT_EQ(value[2], 30);
  value[1] = 21;
  EXPECT_EQ(std::as_const(value)[1], 21);
}

TEST(PerReplica, RefusesToBeEmpty) {
  EXPECT_TUTTI_ERROR(PerReplica<int>(std::vector<int>{}), ErrorCode::kInvalidArgument,
                     "PerReplica: there must be at least one component.");
  EXPECT_TUTTI_ERROR(PerReplica<int>(internal::FromSlots{}, internal::Slots<int>{}),
                     ErrorCode::kInvalidArgument,
                     "PerReplica: there must be at least one component.");
}

TEST(PerReplica, AnIndexOutOfRangeIsAnError) {
  PerReplica<int> value(std::vector{1, 2});
  EXPECT_TUTTI_ERROR(value[2], ErrorCode::kInvalidArgument,
                     "PerReplica: there is no component 2; this value has 2");
  EXPECT_TUTTI_ERROR(std::as_const(value)[5], ErrorCode::kInvalidArgument, "component 5");
  EXPECT_TUTTI_ERROR(PerReplica<int>(std::vector{1})[1], ErrorCode::kInvalidArgument,
                     "component 1; this value has 1");
}

TEST(PerReplica, OnlyIsTheSingleComponent) {
  PerReplica<std::string> one(std::vector<std::string>{"a"});
  EXPECT_EQ(one.only(), "a");
  one.only() += "b";
  EXPECT_EQ(std::as_const(one).only(), "ab");
  EXPECT_EQ(std::move(one).only(), "ab");
}

TEST(PerReplica, OnlyOfSeveralIsAnError) {
  PerReplica<int> two(std::vector{1, 2});
  EXPECT_TUTTI_ERROR(two.only(), ErrorCode::kFailedPrecondition,
                     "PerReplica::only: there are 2 components, not one", "Strategy::reduce",
                     "local_results");
  EXPECT_TUTTI_ERROR(std::as_const(two).only(), ErrorCode::kFailedPrecondition, "2 components");
  EXPECT_TUTTI_ERROR(std::move(two).only(), ErrorCode::kFailedPrecondition, "2 components");
}

TEST(PerReplica, AComponentOfATemporaryIsAValue) {
  using P = PerReplica<std::string>;
  static_assert(std::is_same_v<decltype(std::declval<P>()[0]), std::string>);
  static_assert(std::is_same_v<decltype(std::declval<P>().only()), std::string>);
  static_assert(std::is_same_v<decltype(std::declval<P&>()[0]), std::string&>);
  static_assert(std::is_same_v<decltype(std::declval<P&>().only()), std::string&>);
  static_assert(std::is_same_v<decltype(std::declval<const P&>()[0]), const std::string&>);
  static_assert(std::is_same_v<decltype(std::declval<const P&>().only()), const std::string&>);
  const std::string text(100, 'x');  // longer than any small buffer inside the string
  const auto& kept = P(std::vector<std::string>{text, "y"})[0];
  EXPECT_EQ(kept, text);
}

TEST(PerReplica, ComponentsMayBeMoveOnly) {
  std::vector<std::unique_ptr<int>> pointers;
  pointers.push_back(std::make_unique<int>(1));
  pointers.push_back(std::make_unique<int>(2));
  PerReplica<std::unique_ptr<int>> value(std::move(pointers));
  EXPECT_EQ(*value[1], 2);
  PerReplica<std::unique_ptr<int>> moved = std::move(value);
  EXPECT_EQ(moved.map([](const std::unique_ptr<int>& p) { return *p; })[0], 1);
  const std::unique_ptr<int> taken = std::move(moved)[1];
  EXPECT_EQ(*taken, 2);
  static_assert(!std::is_copy_constructible_v<std::unique_ptr<int>>);
}

TEST(PerReplica, BoolComponentsHaveAnAddressEach) {
  PerReplica<bool> value(std::vector<bool>{true, false});
  EXPECT_TRUE(value[0]);
  EXPECT_FALSE(value[1]);
  static_assert(std::is_same_v<decltype(value[0]), bool&>);
  bool* first = &value[0];
  bool* second = &value[1];
  EXPECT_NE(first, second);
  *second = true;
  EXPECT_TRUE(value[0] && value[1]);
  const PerReplica<bool> inverted = value.map([](bool b) { return !b; });
  EXPECT_FALSE(inverted[0] || inverted[1]);
}

TEST(PerReplica, CopiesAreIndependent) {
  PerReplica<int> value(std::vector{1, 2});
  PerReplica<int> copy = value;
  copy[0] = 5;
  EXPECT_EQ(value[0], 1);
}

struct Out {
  at::Tensor loss;
  int count = 0;
  int doubled() const { return 2 * count; }
};

TEST(PerReplica, MapTakesCallablesAndPointersToMembers) {
  const PerReplica<Out> value(std::vector<Out>{{tensor({1.f}), 3}, {tensor({2.f}), 4}});
  const PerReplica<int> counts = value.map(&Out::count);
  EXPECT_EQ(counts[0], 3);
  EXPECT_EQ(counts[1], 4);
  EXPECT_EQ(value.map(&Out::doubled)[1], 8);
  EXPECT_TRUE(bit_equal(value.map(&Out::loss)[1], tensor({2.f})));
  EXPECT_EQ(counts.map([](int n) { return std::to_string(n); })[1], "4");
}

TEST(PerReplica, MapCallsInOrderOnceEachAndReturnsValues) {
  const PerReplica<int> value(std::vector{1, 2, 3});
  std::vector<int> seen;
  const auto reference = [&seen](const int& x) -> const int& {
    seen.push_back(x);
    return x;
  };
  const auto mapped = value.map(reference);
  static_assert(std::is_same_v<decltype(mapped), const PerReplica<int>>);
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
  EXPECT_NE(&mapped[0], &value[0]);
}

TEST(PerReplica, IsARange) {
  PerReplica<int> value(std::vector{1, 2, 3});
  static_assert(std::forward_iterator<decltype(value.begin())>);
  static_assert(std::forward_iterator<decltype(std::as_const(value).begin())>);
  static_assert(std::is_same_v<decltype(*value.begin()), int&>);
  static_assert(std::is_same_v<decltype(*std::as_const(value).begin()), const int&>);
  for (int& each : value) each *= 10;
  EXPECT_EQ(std::accumulate(value.begin(), value.end(), 0), 60);
  EXPECT_EQ(std::distance(std::as_const(value).begin(), std::as_const(value).end()), 3);
  PerReplica<std::string> texts(std::vector<std::string>{"a", "bc"});
  EXPECT_EQ(std::next(texts.begin())->size(), 2u);
}

TEST(PerReplica, ATupleSplitsIntoPerReplicaParts) {
  using Parts = std::tuple<at::Tensor, int, std::string>;
  const PerReplica<Parts> value(
      std::vector<Parts>{{tensor({1.f}), 1, "a"}, {tensor({2.f}), 2, "b"}});
  const auto [loss, count, name] = value;
  static_assert(std::is_same_v<decltype(loss), const PerReplica<at::Tensor>>);
  static_assert(std::is_same_v<decltype(count), const PerReplica<int>>);
  EXPECT_TRUE(bit_equal(loss[1], tensor({2.f})));
  EXPECT_EQ(count[0], 1);
  EXPECT_EQ(count[1], 2);
  EXPECT_EQ(name[0], "a");
  EXPECT_EQ(name[1], "b");
}

TEST(PerReplica, APairSplitsByReferenceToTheWholeToo) {
  PerReplica<std::pair<int, bool>> value(std::vector<std::pair<int, bool>>{{1, true}, {2, false}});
  const auto& [number, flag] = value;
  EXPECT_EQ(number[1], 2);
  EXPECT_TRUE(flag[0]);
  EXPECT_FALSE(flag[1]);
  std::vector<PerReplica<std::pair<int, bool>>> batches = {value, value};
  int sum = 0;
  for (auto& [x, y] : batches) sum += x[0] + x[1] + (y[0] ? 10 : 0);
  EXPECT_EQ(sum, 26);
}

TEST(PerReplica, AMovedTupleMovesItsParts) {
  using Parts = std::tuple<std::unique_ptr<int>, std::vector<int>>;
  std::vector<Parts> parts;
  parts.emplace_back(std::make_unique<int>(1), std::vector{1, 2});
  parts.emplace_back(std::make_unique<int>(2), std::vector{3});
  const int* data = std::get<1>(parts[0]).data();
  auto [pointer, list] = PerReplica<Parts>(std::move(parts));
  EXPECT_EQ(*pointer[1], 2);
  EXPECT_EQ(list[0], (std::vector{1, 2}));
  EXPECT_EQ(list[0].data(), data) << "moved, not copied";
  EXPECT_EQ(list[1], std::vector{3});
}

TEST(PerReplica, OnlyTuplesAndPairsSplit) {
  EXPECT_EQ((std::tuple_size_v<PerReplica<std::tuple<int, int, int>>>), 3u);
  EXPECT_EQ((std::tuple_size_v<PerReplica<std::pair<int, int>>>), 2u);
  static_assert(
      std::is_same_v<std::tuple_element_t<1, PerReplica<std::pair<int, char>>>, PerReplica<char>>);
  EXPECT_FALSE(internal::is_tuple<Out>);
  EXPECT_FALSE(internal::is_tuple<at::Tensor>);
  EXPECT_FALSE((internal::is_tuple<std::array<int, 2>>));
}

TEST(PerReplica, PrintsAsTheOriginalDocumentsShow) {
  const PerReplica<at::Tensor> value(std::vector{tensor({5.f}), tensor({6.f})});
  EXPECT_EQ(message(value),
            "PerReplica:{\n"
            "  0: Tensor([5.], shape=(1,), dtype=float32),\n"
            "  1: Tensor([6.], shape=(1,), dtype=float32)\n"
            "}");
  EXPECT_EQ(message(PerReplica<int>(std::vector{7})), "PerReplica:{\n  0: 7\n}");
}

TEST(PerReplica, PrintsNestsAndTypesThatPrintThemselves) {
  EXPECT_EQ(message(PerReplica<std::pair<int, std::string>>(
                std::vector<std::pair<int, std::string>>{{1, "a"}, {2, "b"}})),
            "PerReplica:{\n  0: (1, 'a'),\n  1: (2, 'b')\n}");
  EXPECT_EQ(message(PerReplica<PerReplica<int>>(
                std::vector<PerReplica<int>>{PerReplica<int>(std::vector{1})})),
            "PerReplica:{\n  0: PerReplica:{\n  0: 1\n}\n}");
}

}  // namespace
}  // namespace tutti

// A user's namespace whose own functions have the names that the library uses inside.
namespace user {

struct Thing {
  int number;
};
inline void print_value(std::ostream& out, const Thing&) { out << "taken by mistake"; }
template <class... T>
void get(T&&...) = delete;
template <class... T>
void invoke(T&&...) = delete;
template <class... T>
void map(T&&...) = delete;

}  // namespace user

namespace tutti {
namespace {

TEST(PerReplica, FunctionsOfTheSameNameNextToATypeAreNotTaken) {
  const PerReplica<user::Thing> value(std::vector<user::Thing>{{1}, {2}});
  EXPECT_EQ(message(value), "PerReplica:{\n  0: (1),\n  1: (2)\n}");
  EXPECT_EQ(value.map(&user::Thing::number)[1], 2);
}

}  // namespace
}  // namespace tutti
