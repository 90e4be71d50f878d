// SPDX-License-Identifier: Apache-2.0
//
// The variables of a strategy: all that are alive, and those made in one run.

#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/mutex.h"
#include "tutti/values/variable_impl.h"

namespace tutti::internal {

/// The name without each "_<digits>" before a "/" or the end: "w_1/b_2" becomes "w/b". Variables
/// that replicas make in one run are matched by it.
std::string canonical_variable_name(std::string_view name);

/// The variables that the replicas make in one run. Replica 0 makes them and the others take
/// them; variables with the same canonical name are taken in order of creation. Thread-safe.
class RunVariables {
 public:
  explicit RunVariables(size_t replicas) : replicas_(replicas) {}

  void add(std::string canonical_name, std::shared_ptr<VariableImpl> variable);

  /// The next variable of this name that the replica has not taken yet, or null.
  std::shared_ptr<VariableImpl> take(size_t replica, const std::string& canonical_name);

 private:
  struct Entry {
    std::string canonical_name;
    std::shared_ptr<VariableImpl> variable;
    std::vector<bool> taken;
  };

  const size_t replicas_;
  Mutex mutex_;
  std::vector<Entry> entries_ TUTTI_GUARDED_BY(mutex_);
};

/// Thread-safe.
class VariableRegistry {
 public:
  explicit VariableRegistry(size_t replicas) : runs_(replicas) {}

  void add(const std::shared_ptr<VariableImpl>& variable);

  /// The variable that owns the component, or null.
  std::shared_ptr<VariableImpl> find(const at::Tensor& component) const;

  /// The run that a replica is in, or null; set by the replica itself.
  void set_run(size_t replica, RunVariables* run) { runs_[replica].run.store(run); }
  RunVariables* run_of(size_t replica) const { return runs_[replica].run.load(); }

 private:
  struct alignas(64) Run {
    std::atomic<RunVariables*> run{nullptr};
  };

  std::vector<Run> runs_;  // each written by its replica
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<VariableImpl>> variables_ TUTTI_GUARDED_BY(mutex_);
  size_t prune_above_ TUTTI_GUARDED_BY(mutex_) = 64;
};

}  // namespace tutti::internal
