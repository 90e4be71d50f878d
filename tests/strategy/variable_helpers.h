// SPDX-License-Identifier: Apache-2.0
//
// Helpers for tests of variables: making them, comparing all their copies, and computing the
// expected combination of the replicas' values by plain loops.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/values/variable.h"

#include "tests/contract/strategy_contract.h"
#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

/// Short names for use with `using namespace`.
namespace tutti::test::variable_words {

inline constexpr auto kNone = VariableAggregation::kNone;
inline constexpr auto kSum = VariableAggregation::kSum;
inline constexpr auto kMean = VariableAggregation::kMean;
inline constexpr auto kOnlyFirstReplica = VariableAggregation::kOnlyFirstReplica;
inline constexpr auto kInvalid = ErrorCode::kInvalidArgument;
inline constexpr auto kPrecondition = ErrorCode::kFailedPrecondition;

}  // namespace tutti::test::variable_words

namespace tutti::test {

inline constexpr VariableAggregation kAllAggregations[] = {
    VariableAggregation::kNone, VariableAggregation::kSum, VariableAggregation::kMean,
    VariableAggregation::kOnlyFirstReplica};

inline MirroredStrategy mirrored_cpus(int replicas) { return MirroredStrategy(cpus(replicas)); }

/// A variable made in the scope of the strategy.
template <class T>
Variable make_variable(const Strategy& strategy, const T& initial_value,
                       const VariableOptions& options = {}) {
  return strategy.scope([&] { return Variable(initial_value, options); });
}

inline Variable on_write(const Strategy& strategy, const at::Tensor& initial_value,
                         VariableAggregation aggregation) {
  return make_variable(strategy, initial_value, {.name = "w", .aggregation = aggregation});
}

inline Variable on_read(const Strategy& strategy, const at::Tensor& initial_value,
                        VariableAggregation aggregation) {
  return make_variable(strategy, initial_value,
                       {.name = "m",
                        .synchronization = VariableSynchronization::kOnRead,
                        .aggregation = aggregation});
}

/// Whether copy i of the variable has the bits of expected(i).
inline ::testing::AssertionResult copies_are(const Variable& variable,
                                             const std::function<at::Tensor(int)>& expected) {
  for (size_t i = 0; i < variable.components().size(); ++i) {
    auto equal = bit_equal(variable.components()[i], expected(static_cast<int>(i)));
    if (!equal) return equal << " in copy " << i;
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult copies_are(const Variable& variable, const at::Tensor& expected) {
  return copies_are(variable, [&](int) { return expected; });
}

/// The tensors of all replicas reduced, element by element.
inline at::Tensor tree_reduced(ReduceOp op, const std::vector<at::Tensor>& parts) {
  at::Tensor result = at::empty_like(parts[0]);
  with_type(parts[0].scalar_type(), [&]<class T>() {
    T* const data = result.data_ptr<T>();
    for (int64_t e = 0; e < result.numel(); ++e) {
      data[e] = expected_reduction<T>(op, parts.size(),
                                      [&](size_t r) { return parts[r].data_ptr<T>()[e]; });
    }
  });
  return result;
}

}  // namespace tutti::test
