// SPDX-License-Identifier: Apache-2.0
//
// The contract of run: what it returns, and how arguments arrive.

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::run_contract_test {

using test::my_id;

struct Losses {
  at::Tensor loss;
  int64_t count = 0;
};

int free_function() { return my_id() * 3; }

struct Accumulator {
  int value = 0;
  int doubled() const { return 2 * value; }
};

TEST_P(StrategyContract, RunReturnsIntsAndBools) {
  const auto ints = strategy().run([] { return my_id() * 10; });
  const auto bools = strategy().run([] { return my_id() % 2 == 0; });
  static_assert(std::is_same_v<decltype(bools), const PerReplica<bool>>);
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(ints[static_cast<size_t>(i)], i * 10);
    EXPECT_EQ(bools[static_cast<size_t>(i)], i % 2 == 0);
  }
}

TEST_P(StrategyContract, RunReturnsTensors) {
  const auto result = strategy().run([] { return at::full({2}, my_id()); });
  static_assert(std::is_same_v<decltype(result), const PerReplica<at::Tensor>>);
  for (int i = 0; i < n(); ++i) {
    EXPECT_TRUE(at::equal(result[static_cast<size_t>(i)], at::full({2}, i)));
  }
}

TEST_P(StrategyContract, RunReturnsMoveOnlyValues) {
  auto result = strategy().run([] { return std::make_unique<int>(my_id() + 1); });
  for (int i = 0; i < n(); ++i) EXPECT_EQ(*result[static_cast<size_t>(i)], i + 1);
}

TEST_P(StrategyContract, RunReturnsNothing) {
  std::vector<int> seen(static_cast<size_t>(n()), -1);
  static_assert(std::is_void_v<decltype(strategy().run([] {}))>);
  strategy().run([&] { seen[static_cast<size_t>(my_id())] = my_id(); });
  for (int i = 0; i < n(); ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST_P(StrategyContract, RunReturnsStructsWhoseFieldsCanBeMapped) {
  const auto result = strategy().run([] { return Losses{at::full({}, my_id()), my_id() + 5}; });
  const PerReplica<int64_t> counts = result.map(&Losses::count);
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(result[static_cast<size_t>(i)].loss.item<int64_t>(), i);
    EXPECT_EQ(counts[static_cast<size_t>(i)], i + 5);
  }
}

TEST_P(StrategyContract, RunReturnsTuplesThatSplit) {
  auto [ids, names] =
      strategy().run([] { return std::tuple(my_id(), "r" + std::to_string(my_id())); });
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(ids[static_cast<size_t>(i)], i);
    EXPECT_EQ(names[static_cast<size_t>(i)], "r" + std::to_string(i));
  }
}

TEST_P(StrategyContract, RunReturnsCopiesOfWhatReferencesPointTo) {
  std::string text = "before";
  const auto result = strategy().run([&]() -> std::string& { return text; });
  static_assert(std::is_same_v<decltype(result), const PerReplica<std::string>>);
  text = "after";
  for (const std::string& each : result) EXPECT_EQ(each, "before");
}

TEST_P(StrategyContract, RunTakesFunctionsAndMemberFunctions) {
  const auto from_function = strategy().run(free_function);
  const auto from_pointer = strategy().run(&free_function);
  const auto from_member =
      strategy().run(&Accumulator::doubled, per_replica([](int i) { return Accumulator{i + 1}; }));
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(from_function[static_cast<size_t>(i)], 3 * i);
    EXPECT_EQ(from_pointer[static_cast<size_t>(i)], 3 * i);
    EXPECT_EQ(from_member[static_cast<size_t>(i)], 2 * (i + 1));
  }
}

TEST_P(StrategyContract, RunAcceptsRunOptions) {
  const auto result = strategy().run(
      RunOptions{.enable_dynamic_batch_size = false}, [](int x) { return x + my_id(); }, 5);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(result[static_cast<size_t>(i)], 5 + i);
}

TEST_P(StrategyContract, APerReplicaLvalueArrivesAsAReferenceToTheComponent) {
  auto values = per_replica([](int i) { return i; });
  strategy().run([](int& mine) { mine += 100; }, values);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(values[static_cast<size_t>(i)], i + 100);
}

TEST_P(StrategyContract, AConstPerReplicaArrivesAsAConstReference) {
  const auto values = per_replica([](int i) { return i; });
  const auto addresses = strategy().run(
      [](auto&& mine) {
        static_assert(std::is_same_v<decltype(mine), const int&>);
        return &mine;
      },
      values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(addresses[i], &values[i]);
}

TEST_P(StrategyContract, AMovedPerReplicaArrivesAsAnRvalue) {
  auto values = per_replica([](int i) { return std::make_unique<int>(i); });
  const auto results =
      strategy().run([](std::unique_ptr<int> mine) { return *mine + 1; }, std::move(values));
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i + 1);
}

TEST_P(StrategyContract, AMirroredArgumentArrivesAsThisReplicasConstComponent) {
  std::vector<int> components;
  for (int i = 0; i < n(); ++i) components.push_back(i * 7);
  Mirrored<int> values(components);
  const auto results = strategy().run(
      [](auto&& mine) {
        static_assert(std::is_same_v<decltype(mine), const int&>);
        return mine;
      },
      values);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i * 7);
}

TEST_P(StrategyContract, MirroredValueIsTheOneOfTheReplicaInRunAndTheFirstElsewhere) {
  std::vector<int> components;
  for (int i = 0; i < n(); ++i) components.push_back(i + 40);
  const std::tuple<Mirrored<int>> hidden{Mirrored<int>(components)};
  // Only top-level arguments are selected: the Mirrored arrives whole inside the plain tuple.
  const auto results = strategy().run(
      [](const std::tuple<Mirrored<int>>& whole) { return std::get<0>(whole).value(); }, hidden);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], i + 40);
  EXPECT_EQ(std::get<0>(hidden).value(), 40);
}

TEST_P(StrategyContract, PlainArgumentsArriveAsConstReferencesToOneObject) {
  std::string text = "shared";
  const auto addresses = strategy().run(
      [](auto&& mine) {
        static_assert(std::is_same_v<decltype(mine), const std::string&>);
        return &mine;
      },
      text);
  for (const std::string* address : addresses) EXPECT_EQ(address, &text);
}

TEST_P(StrategyContract, PlainRvaluesAreNotMovedFrom) {
  const auto sizes = strategy().run(
      [](auto&& mine) {
        static_assert(std::is_same_v<decltype(mine), const std::vector<int>&>);
        const std::vector<int> mine_now = mine;
        return mine_now.size();
      },
      std::vector<int>{1, 2, 3});
  for (const size_t size : sizes) EXPECT_EQ(size, 3U);
}

TEST_P(StrategyContract, RefPassesAMutableReference) {
  std::atomic<int> calls = 0;
  strategy().run([](std::atomic<int>& counter) { counter.fetch_add(1); }, std::ref(calls));
  EXPECT_EQ(calls.load(), n());
}

TEST_P(StrategyContract, PerReplicaTuplesAreSpreadWhereTheFunctionAcceptsIt) {
  auto pairs = per_replica([](int i) { return std::pair(i, i * 0.5); });
  auto tuples = per_replica([](int i) { return std::tuple(std::to_string(i), i + 1, 'c'); });
  const auto results =
      strategy().run([](int a, double b, const std::string& plain, const std::string& c, int d,
                        char e) { return std::tuple(a, b, plain + c + e, d); },
                     pairs, std::string("p"), tuples);
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(results[static_cast<size_t>(i)],
              std::tuple(i, i * 0.5, "p" + std::to_string(i) + "c", i + 1));
  }
}

TEST_P(StrategyContract, PerReplicaTuplesArriveWholeWhereTheFunctionWantsThat) {
  const auto pairs = per_replica([](int i) { return std::pair(i, i + 0.25); });
  const auto sums =
      strategy().run([](const std::pair<int, double>& p) { return p.first + p.second; }, pairs);
  for (int i = 0; i < n(); ++i) EXPECT_EQ(sums[static_cast<size_t>(i)], 2 * i + 0.25);
}

TEST_P(StrategyContract, GenericLambdasGetTheParts) {
  const auto tuples =
      per_replica([](int i) { return std::tuple(at::full({2}, i), at::ones({2})); });
  const auto counts = strategy().run([](auto... xs) { return sizeof...(xs); }, tuples);
  const auto stacked = strategy().run([](const auto&... xs) { return at::stack({xs...}); }, tuples);
  for (int i = 0; i < n(); ++i) {
    EXPECT_EQ(counts[static_cast<size_t>(i)], 2U);
    EXPECT_TRUE(
        at::equal(stacked[static_cast<size_t>(i)], at::stack({at::full({2}, i), at::ones({2})})));
  }
}

TEST_P(StrategyContract, ArraysStructsAndPlainTuplesAreNotSpread) {
  const auto arrays = per_replica([](int i) { return std::array<int, 2>{i, i}; });
  const auto structs = per_replica([](int i) { return Losses{at::ones({}), i}; });
  const auto counts = strategy().run([](auto&&... xs) { return sizeof...(xs); }, arrays, structs,
                                     std::tuple(1, 2, 3));
  for (const size_t count : counts) EXPECT_EQ(count, 3U);
}

TEST_P(StrategyContract, MoveOnlyPartsOfAMovedTupleArriveAsRvalues) {
  auto tuples = per_replica([](int i) { return std::tuple(std::make_unique<int>(i), 2); });
  const auto results = strategy().run(
      [](std::unique_ptr<int> owned, int factor) { return *owned * factor; }, std::move(tuples));
  for (int i = 0; i < n(); ++i) EXPECT_EQ(results[static_cast<size_t>(i)], 2 * i);
}

TEST_P(StrategyContract, ArgumentsOfAnotherStrategyAreAnError) {
  const PerReplica<int> too_many(std::vector<int>(static_cast<size_t>(n()) + 1, 0));
  EXPECT_TUTTI_ERROR(strategy().run([](int) {}, too_many), ErrorCode::kInvalidArgument,
                     "Strategy::run", std::to_string(n() + 1) + " components",
                     strategy().extended().describe());
  const Mirrored<int> mirrored(std::vector<int>(static_cast<size_t>(n()) + 1, 0));
  EXPECT_TUTTI_ERROR(strategy().run([](int) {}, mirrored), ErrorCode::kInvalidArgument,
                     "another strategy");
}

TEST_P(StrategyContract, AFunctionMayReturnItsArgument) {
  const auto tensors = per_replica([](int i) { return at::full({1}, i); });
  const auto same = strategy().run([](const at::Tensor& x) { return x; }, tensors);
  for (size_t i = 0; i < same.size(); ++i) EXPECT_TRUE(same[i].is_same(tensors[i]));
}

}  // namespace tutti::run_contract_test
