// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/internal/scalar_values.h"

#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/collectives/reduction_tree.h"
#include "tutti/strategy/strategy_extended.h"

namespace tutti::internal {
namespace {

template <class T>
T combine_scalars(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMin:
      return a < b || a != a ? a : b;
    case ReduceOp::kMax:
      return a > b || a != a ? a : b;
    case ReduceOp::kProduct:
      // Multiplies in 64 bits: 16-bit factors would be promoted to int, which may overflow.
      if constexpr (std::is_unsigned_v<T>) return static_cast<T>(uint64_t{a} * b);
      return static_cast<T>(a * b);
    default:
      return static_cast<T>(a + b);
  }
}

}  // namespace

void reduce_scalars(StrategyExtended& strategy, ReduceOp op, const std::vector<Leaf>& column,
                    const Leaf& result, const CommunicationOptions& options) {
  visit_scalar(column[0], [&](auto& first) {
    using T = std::remove_reference_t<decltype(first)>;
    if constexpr (!std::is_same_v<T, bool>) {
      // Unsigned arithmetic wraps where signed arithmetic would be undefined.
      using U = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                            std::type_identity<T>>::type;
      const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
      std::vector<T> values;
      for (const Leaf& leaf : column) values.push_back(*static_cast<T*>(leaf.data));
      values = strategy.workers().concatenate(
          std::move(values),
          [&] {
            std::string what = "reduce(";  // a stream would be slower than the exchange
            what.append(to_string(op)).append(") of a number, ").append(column[0].describe());
            return what;
          },
          options.timeout);
      const auto count = static_cast<T>(values.size());
      T reduced = reduce_tree_scalars(std::span(values), [&](T a, T b) {
        return ordered ? combine_scalars(op, a, b)
                       : static_cast<T>(combine_scalars(op, static_cast<U>(a), static_cast<U>(b)));
      });
      if (op == ReduceOp::kMean) reduced = static_cast<T>(reduced / count);
      *static_cast<T*>(result.data) = reduced;
    }
  });
}

}  // namespace tutti::internal
