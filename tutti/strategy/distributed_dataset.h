// SPDX-License-Identifier: Apache-2.0
//
// A dataset whose elements are split over replicas:
//
//   auto batches = strategy.distribute_dataset(dataset.batch(global_batch_size));
//   for (auto& batch : batches) strategy.run(step, batch);
//
// It can only be iterated: transform the dataset before distributing it.

#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/data/dataset.h"
#include "tutti/strategy/input_options.h"
#include "tutti/strategy/internal/input_reader.h"
#include "tutti/values/per_replica.h"

namespace tutti {

/// A pass over a distributed dataset, for use by one thread, outside of replicas (inside one it
/// throws kFailedPrecondition). Every worker must continue as long as any worker has data: a
/// replica without data gets an element of 0 rows, and incomplete steps are not dropped.
/// Destroying the iterator stops its threads.
template <class T>
class DistributedIterator {
 public:
  explicit DistributedIterator(std::shared_ptr<const internal::InputSource> source)
      : source_(std::move(source)),
        reader_(std::make_unique<internal::InputReader>(source_, data::to_element(T{}))) {}

  /// The next step; nullopt when no replica of any worker has data.
  std::optional<PerReplica<T>> get_next_as_optional() {
    std::vector<data::Element> elements;
    int64_t global_rows = 0;
    if (!reader_->next(elements, global_rows)) return std::nullopt;
    std::vector<T> components;
    for (data::Element& element : elements) {
      components.push_back(data::from_element<T>(std::move(element)));
    }
    return PerReplica<T>(std::move(components), global_rows);
  }

  /// The next step. Throws kNotFound at the end.
  PerReplica<T> get_next() {
    std::optional<PerReplica<T>> step = get_next_as_optional();
    if (!step) internal::throw_end_of_input();
    return std::move(*step);
  }

  /// The same as get_next(), for programs that use this name.
  PerReplica<T> next() { return get_next(); }

  /// What each local replica gets.
  PerReplica<data::ElementSpec> element_spec() const {
    return PerReplica<data::ElementSpec>(source_->element_specs());
  }

  /// The position of this pass, for restore() of a new iterator. Under AutoShardPolicy::kData and
  /// kBatch a position is valid for any number of workers and replicas, otherwise only for this
  /// worker.
  std::string save() { return reader_->save(); }

  /// Throws kFailedPrecondition for a position that belongs to another worker, kDataLoss
  /// for one of another pipeline.
  void restore(std::string_view position) { reader_->restore(position); }

  /// The time spent in the user's functions, by stage.
  std::vector<data::StageStats> stats() const { return reader_->stats(); }

 private:
  std::shared_ptr<const internal::InputSource> source_;
  std::unique_ptr<internal::InputReader> reader_;
};

/// A handle, cheap to copy; made by Strategy::distribute_dataset and
/// Strategy::distribute_datasets_from_function. Each loop over it is a new pass, which any thread
/// may begin, in the same order on all workers. Immutable.
template <class T>
class DistributedDataset {
 public:
  using value_type = PerReplica<T>;

  explicit DistributedDataset(std::shared_ptr<const internal::InputSource> source)
      : source_(std::move(source)) {}

  DistributedIterator<T> iterator() const { return DistributedIterator<T>(source_); }

  class RangeIterator;
  RangeIterator begin() const { return RangeIterator(iterator()); }
  std::default_sentinel_t end() const { return {}; }

  PerReplica<data::ElementSpec> element_spec() const {
    return PerReplica<data::ElementSpec>(source_->element_specs());
  }

  /// The number of steps of this worker, data::kInfinite or data::kUnknown.
  int64_t cardinality() const { return source_->cardinality(); }

  /// state = fn(state, step) for each step.
  template <class S, class F>
  S reduce(S state, const F& fn) const {
    for (auto& step : *this) state = fn(std::move(state), step);
    return state;
  }

 private:
  std::shared_ptr<const internal::InputSource> source_;
};

/// An input iterator; copies share the pass, so one thread uses them all.
template <class T>
class DistributedDataset<T>::RangeIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = PerReplica<T>;
  using difference_type = std::ptrdiff_t;
  using pointer = PerReplica<T>*;
  using reference = PerReplica<T>&;

  explicit RangeIterator(DistributedIterator<T> pass)
      : pass_(std::make_shared<DistributedIterator<T>>(std::move(pass))),
        step_(pass_->get_next_as_optional()) {}

  PerReplica<T>& operator*() const { return *step_; }
  PerReplica<T>* operator->() const { return &*step_; }
  RangeIterator& operator++() {
    step_ = pass_->get_next_as_optional();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const RangeIterator& it, std::default_sentinel_t) {
    return !it.step_.has_value();
  }

 private:
  std::shared_ptr<DistributedIterator<T>> pass_;
  mutable std::optional<PerReplica<T>> step_;
};

}  // namespace tutti
