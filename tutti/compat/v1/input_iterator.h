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

  /// For batches whose size is not known before they are read: the rows of the first step must be
  /// divisible by `num_replicas`.
  InputIterator(DistributedDataset<T> dataset, int num_replicas)
      : state_(std::make_shared<State>(State{std::move(dataset), num_replicas, std::nullopt})) {}

  /// Begins a pass. Called again, it restarts from the first step.
  void initialize() const { state_->pass.emplace(state_->dataset.iterator()); }

  /// The next step of the pass, which begins here if initialize() was not called. Throws kNotFound
  /// at the end.
  PerReplica<T> get_next() const {
    std::optional<PerReplica<T>> step = get_next_as_optional();
    if (!step) tutti::internal::throw_end_of_input();
    return std::move(*step);
  }

  /// The same; nullopt at the end.
  std::optional<PerReplica<T>> get_next_as_optional() const {
    const bool is_first = !state_->pass;
    if (is_first) initialize();
    std::optional<PerReplica<T>> step = state_->pass->get_next_as_optional();
    if (step && state_->num_replicas > 1) {
      internal::check_divisible(step->global_rows(), std::exchange(state_->num_replicas, 1));
    }
    return step;
  }

  /// What each local replica gets.
  PerReplica<data::ElementSpec> element_spec() const { return state_->dataset.element_spec(); }

 private:
  struct State {
    DistributedDataset<T> dataset;
    int num_replicas;  // that must divide the rows of the first step
    std::optional<DistributedIterator<T>> pass;
  };

  std::shared_ptr<State> state_;
};

}  // namespace tutti::v1
