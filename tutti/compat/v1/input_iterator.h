// SPDX-License-Identifier: Apache-2.0
//
// tf.distribute.InputIterator: distributed input that is read step by step and can be restarted.
// make_dataset_iterator() and make_input_fn_iterator() of tf_v1.h return one.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tutti/strategy/distributed_dataset.h"
#include "tutti/values/per_replica.h"

namespace tutti::v1 {
namespace internal {

/// Throws kInvalidArgument unless the replicas can share the rows evenly.
void check_divisible(int64_t rows, int num_replicas);

}  // namespace internal

/// A handle, cheap to copy; copies share the position. For use by one thread, outside of replicas.
template <class T>
class InputIterator {
 public:
  using value_type = PerReplica<T>;

  explicit InputIterator(DistributedDataset<T> dataset) : InputIterator(std::move(dataset), 1) {}

  /// For batches whose size is not known before they are read: the rows of the first step of each
  /// pass must be divisible by `num_replicas`.
  InputIterator(DistributedDataset<T> dataset, int num_replicas)
      : state_(std::make_shared<State>(State{std::move(dataset), num_replicas})) {}

  /// Begins a pass. Called again, it restarts from the first step.
  void initialize() const {
    state_->pass.emplace(state_->dataset.iterator());
    state_->has_begun = false;
  }

  /// The next step of the pass, which begins here if initialize() was not called. Throws kNotFound
  /// at the end.
  PerReplica<T> get_next() const {
    std::optional<PerReplica<T>> step = get_next_as_optional();
    if (!step) tutti::internal::throw_end_of_input();
    return std::move(*step);
  }

  /// The same; nullopt at the end.
  std::optional<PerReplica<T>> get_next_as_optional() const {
    if (!state_->pass) initialize();
    const bool is_first = !std::exchange(state_->has_begun, true);
    std::optional<PerReplica<T>> step = state_->pass->get_next_as_optional();
    if (is_first && step && state_->num_replicas > 1) {
      try {
        internal::check_divisible(step->global_rows(), state_->num_replicas);
      } catch (...) {
        state_->pass.reset();  // the next call finds the same batch
        throw;
      }
    }
    return step;
  }

  /// What each local replica gets.
  PerReplica<data::ElementSpec> element_spec() const { return state_->dataset.element_spec(); }

 private:
  struct State {
    DistributedDataset<T> dataset;
    int num_replicas;  // that must divide the rows of the first step of a pass
    std::optional<DistributedIterator<T>> pass = std::nullopt;
    bool has_begun = false;
  };

  std::shared_ptr<State> state_;
};

}  // namespace tutti::v1
