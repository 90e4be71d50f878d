// SPDX-License-Identifier: Apache-2.0
//
// Strategy::reduce and Strategy::gather on lists of leaves; the templates of
// strategy.h list them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/OptionalArrayRef.h>

#include "tutti/nest/leaf.h"
#include "tutti/nest/nest.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/destinations.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"
#include "tutti/values/variable.h"

namespace tutti {

class ReplicaContext;
class StrategyExtended;

namespace internal {

template <class V>
struct component {
  using type = V;
};
template <class T>
struct component<PerReplica<T>> {
  using type = T;
};
template <class T>
struct component<Mirrored<T>> {
  using type = T;
};

using ReduceLeaves = std::vector<LeafList>;  // one list per local replica

// Reduces or gathers into `result`, a copy of the first component.
void reduce_per_replica(const StrategyExtended& strategy, ReduceOp op, const ReduceLeaves& leaves,
                        const std::vector<std::string>& structures, const LeafList& result,
                        at::OptionalIntArrayRef axis);
void gather_per_replica(const StrategyExtended& strategy, const ReduceLeaves& leaves,
                        const std::vector<std::string>& structures, const LeafList& result,
                        int64_t axis);

/// Reduces a value that is not per replica. Unless it is mirrored, every worker has its own value,
/// and the values are combined over the workers.
void reduce_plain(const StrategyExtended& strategy, ReduceOp op, const LeafList& result,
                  at::OptionalIntArrayRef axis, bool is_mirrored);
void gather_plain(const StrategyExtended& strategy, const LeafList& result, int64_t axis);

void check_components(const StrategyExtended& strategy, const char* function, size_t components);
void check_cross_for_values(const StrategyExtended& strategy);

/// One value of batch_reduce_to.
struct ReduceToItem {
  const Destinations* destinations = nullptr;
  ReduceLeaves leaves = {};
  std::vector<std::string> structures = {};
  std::vector<LeafList> results = {};  // one list per destination, copies of the first component
};

/// `who` is extended().reduce_to or extended().batch_reduce_to.
void reduce_items_to(StrategyExtended& strategy, const char* who, ReduceOp op,
                     const std::vector<ReduceToItem>& items, const CommunicationOptions& options);

/// `results` are copies of the value, one for each destination.
void reduce_plain_to(StrategyExtended& strategy, ReduceOp op, const std::vector<LeafList>& results,
                     const Destinations& destinations, bool is_mirrored);

/// The replica of the strategy that the calling thread works for, or null.
ReplicaContext* replica_of(const StrategyExtended& strategy);

/// Throws kInvalidArgument when the replicas gave different variables.
void check_same_variable(const PerReplica<const VariableImpl*>& variables);

/// A variable as reduce and gather treat it.
struct VariableParts {
  enum class Kind { kPlain, kMirrored, kPerReplica };

  Kind kind;
  std::vector<at::Tensor> components;
};

/// The components, or the value if the variable has none in this process.
std::vector<at::Tensor> local_values(const Variable& variable);

/// Throws kInvalidArgument for a variable of another strategy.
VariableParts variable_parts(const StrategyExtended& strategy, const char* function,
                             const Variable& variable);

/// Calls fn with the components as a tensor, a Mirrored or a PerReplica.
template <class F>
auto with_components(const StrategyExtended& strategy, const char* function,
                     const Variable& variable, const F& fn) {
  VariableParts parts = variable_parts(strategy, function, variable);
  if (parts.kind == VariableParts::Kind::kPlain) return fn(parts.components[0]);
  if (parts.kind == VariableParts::Kind::kMirrored) {
    return fn(Mirrored<at::Tensor>(std::move(parts.components)));
  }
  return fn(PerReplica<at::Tensor>(std::move(parts.components)));
}

template <class V>
ReduceLeaves leaves_by_replica(const V& value, std::vector<std::string>& structures) {
  ReduceLeaves lists;
  for (const auto& each : value) {
    lists.push_back(leaves_of(each));
    structures.push_back(structure_of(each));
  }
  return lists;
}

}  // namespace internal
}  // namespace tutti
