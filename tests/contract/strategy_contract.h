// SPDX-License-Identifier: Apache-2.0
//
// The fixture of the suite that every strategy passes. A new strategy is one more line in
// strategy_contract_test.cc; the tests themselves are in the *_contract_test.cc files.

#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/strategy/strategy.h"

namespace tutti {

struct StrategyCase {
  /// The layout of a variable that does not synchronise on read.
  enum class Copies {
    kPerReplica,
    kPlain,   ///< One replica, one copy, no wrapper.
    kShared,  ///< One copy for several replicas, on CPU:0.
  };

  std::string name;
  std::function<Strategy()> make;
  bool is_default = false;
  Copies copies = Copies::kPerReplica;
};

inline void PrintTo(const StrategyCase& each, std::ostream* out) { *out << each.name; }

class StrategyContract : public testing::TestWithParam<StrategyCase> {
 protected:
  const Strategy& strategy() const { return strategy_; }

  /// The number of replicas.
  int n() const { return strategy_.num_replicas_in_sync(); }

  bool variables_are_plain() const { return GetParam().copies == StrategyCase::Copies::kPlain; }
  bool variables_are_shared() const { return GetParam().copies == StrategyCase::Copies::kShared; }

  /// The number of copies of a variable that does not synchronise on read.
  int copies() const { return variables_are_shared() ? 1 : n(); }

  /// The aggregation of a variable that all replicas write with equal values: replicas that
  /// share it need one.
  VariableAggregation for_equal_writes() const {
    return variables_are_shared() ? VariableAggregation::kOnlyFirstReplica
                                  : VariableAggregation::kNone;
  }

  /// PerReplica of fn(0), fn(1), ...
  template <class F>
  auto per_replica(const F& fn) const {
    using T = std::decay_t<std::invoke_result_t<const F&, int>>;
    std::vector<T> components;
    for (int i = 0; i < n(); ++i) components.push_back(fn(i));
    return PerReplica<T>(std::move(components));
  }

 private:
  Strategy strategy_ = GetParam().make();
};

namespace test {

/// The id of the replica that the calling thread works for.
inline int my_id() { return get_replica_context()->replica_id_in_sync_group(); }

/// The names of n logical CPU devices.
inline std::vector<std::string> cpus(int n) {
  std::vector<std::string> names;
  for (int i = 0; i < n; ++i) names.push_back("CPU:" + std::to_string(i));
  return names;
}

}  // namespace test
}  // namespace tutti
