// SPDX-License-Identifier: Apache-2.0
//
// Input pipelines:
//
//   auto batches = tutti::data::from_tensor_slices(std::tuple(images, labels))
//                      .shuffle(10'000, {.seed = 1})
//                      .map(augment, {.num_parallel_calls = tutti::data::kAutoParallel})
//                      .batch(256)
//                      .prefetch(2);
//   for (auto& [x, y] : batches) ...
//
// A dataset is a description; each loop over it is a new pass. A function given to map, filter,
// flat_map or interleave receives a tuple spread into its parts if it accepts that, else as a
// whole. Strategy::distribute_dataset splits a dataset over replicas.

#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/data/internal/batched.h"
#include "tutti/data/node.h"
#include "tutti/data/options.h"
#include "tutti/data/pass.h"
#include "tutti/data/sources.h"
#include "tutti/data/transforms.h"

namespace tutti::data {

/// A pass over a dataset, used by one thread. Dropping it stops its threads. An error ends
/// the pass and is thrown again by every later call.
template <class T>
class Iterator {
 public:
  explicit Iterator(NodePtr node) : pass_(std::make_unique<Pass>(std::move(node))) {}

  /// The next element; nullopt at the end.
  std::optional<T> next() {
    if (!pass_->next(element_)) return std::nullopt;
    return from_element<T>(std::move(element_));
  }

  /// The next element. Throws kNotFound at the end.
  T get_next() {
    std::optional<T> value = next();
    if (!value) internal::throw_end_of_dataset();
    return std::move(*value);
  }

  /// Returns the memory of a record for reuse by the next one.
  void use_again(std::string&& record) {
    element_.values.clear();
    element_.values.emplace_back(std::move(record));
  }

  /// The position of this pass, for restore() of a new iterator over the same pipeline.
  std::string save() { return pass_->save(); }

  /// Continues at a saved position. Throws kDataLoss for a position of a different pipeline,
  /// kFailedPrecondition unless the iterator is new.
  void restore(std::string_view position) { pass_->restore(position); }

  /// The time spent in the user's functions, by stage.
  std::vector<StageStats> stats() const { return pass_->stats(); }

 private:
  std::unique_ptr<Pass> pass_;
  Element element_;  // emptied by every call
};

/// A handle, cheap to copy. T is a nest. Immutable: passes may run concurrently on different
/// threads, and then call its functions concurrently.
template <Nest T>
class Dataset {
 public:
  using value_type = T;

  explicit Dataset(NodePtr node) : node_(std::move(node)) {}

  // ---- reading

  Iterator<T> iterator() const { return Iterator<T>(node_); }

  class RangeIterator;
  /// Starts a new pass. The reference that an iterator yields is valid until its next ++.
  RangeIterator begin() const { return RangeIterator(node_); }
  std::default_sentinel_t end() const { return {}; }

  /// The number of elements, kInfinite or kUnknown.
  int64_t cardinality() const { return node_->cardinality(); }
  ElementSpec element_spec() const { return node_->spec(); }

  // ---- changing elements

  /// Applies fn to each element.
  template <class F>
  auto map(F fn, const MapOptions& options = {}) const;

  /// The elements for which fn is true.
  template <class F>
  Dataset filter(F fn) const;

  /// The elements of the datasets that fn returns, one dataset after the other.
  template <class F>
  auto flat_map(F fn) const;

  /// The elements of the datasets that fn returns, taken from several datasets in turn.
  template <class F>
  auto interleave(F fn, const InterleaveOptions& options = {}) const;

  /// Combines n elements into one: tensors are stacked, numbers become tensors, strings vectors.
  auto batch(int64_t n, const BatchOptions& options = {}) const {
    return Dataset<internal::BatchOf<T>>(make_batch(node_, n, options));
  }

  /// The same for tensors of different sizes, which are padded at their ends.
  auto padded_batch(int64_t n, const PaddedBatchOptions& options = {}) const {
    return Dataset<internal::BatchOf<T>>(make_padded_batch(node_, n, options));
  }

  /// Recuts batches of any size into batches of n rows, or of sizes[0], sizes[1], ... rows,
  /// starting over after the last.
  Dataset rebatch(int64_t n, const BatchOptions& options = {}) const {
    return Dataset(make_rebatch(node_, {n}, options.drop_remainder));
  }
  Dataset rebatch(std::vector<int64_t> sizes, const BatchOptions& options = {}) const {
    return Dataset(make_rebatch(node_, std::move(sizes), options.drop_remainder));
  }

  /// The rows of each element.
  auto unbatch() const { return Dataset<internal::RowOf<T>>(make_unbatch(node_)); }

  /// (start, first element), (start + 1, second), ...
  Dataset<std::tuple<int64_t, T>> enumerate(int64_t start = 0) const {
    return Dataset<std::tuple<int64_t, T>>(make_enumerate(node_, start));
  }

  // ---- choosing and ordering elements

  /// A count of -1 means all elements, for repeat() forever.
  Dataset take(int64_t count) const { return Dataset(make_take(node_, count)); }
  Dataset skip(int64_t count) const { return Dataset(make_skip(node_, count)); }
  Dataset repeat(int64_t count = -1) const { return Dataset(make_repeat(node_, count)); }

  /// Elements index, index + num_shards, ...
  Dataset shard(int64_t num_shards, int64_t index) const {
    return Dataset(make_shard(node_, num_shards, index));
  }

  /// Draws each element at random from the next `buffer_size`.
  Dataset shuffle(int64_t buffer_size, const ShuffleOptions& options = {}) const {
    return Dataset(make_shuffle(node_, buffer_size, options));
  }

  /// These elements, then those of `other`.
  Dataset concatenate(const Dataset& other) const {
    return Dataset(make_concatenate({node_, other.node_}));
  }

  // ---- running

  /// Reads up to `buffer_size` elements ahead on a dedicated thread.
  Dataset prefetch(int64_t buffer_size) const { return Dataset(make_prefetch(node_, buffer_size)); }

  /// Keeps the elements of the first complete pass in memory for later ones. All passes share the
  /// same tensors: do not change them in place.
  Dataset cache() const { return Dataset(make_cache(node_)); }

  /// The same in a file, which later runs of the program use too. It is complete after a full pass.
  /// Delete it when the data change. Workers that see different data need different files. Throws
  /// kDataLoss if the file is damaged.
  Dataset cache(std::string path) const { return Dataset(make_cache(node_, std::move(path))); }

  Dataset with_options(const DatasetOptions& options) const {
    return Dataset(make_options(node_, options));
  }
  DatasetOptions options() const { return options_of(*node_); }

  const NodePtr& node() const { return node_; }

 private:
  NodePtr node_;
};

// ---- sources

inline Dataset<int64_t> range(int64_t stop) { return Dataset<int64_t>(make_range(0, stop, 1)); }
inline Dataset<int64_t> range(int64_t start, int64_t stop, int64_t step = 1) {
  return Dataset<int64_t>(make_range(start, stop, step));
}

/// One element.
template <Nest T>
Dataset<T> from_tensors(T value) {
  return Dataset<T>(make_tensors(to_element(std::move(value))));
}

/// One element for each row of the tensors.
template <Nest T>
auto from_tensor_slices(T rows) {
  return Dataset<internal::RowOf<T>>(make_tensor_slices(to_element(std::move(rows))));
}

/// `start` is called at the beginning of each pass and returns a callable that yields one element
/// per call as an optional, and nullopt at the end.
template <class F>
auto from_generator(F start) {
  using Next = std::invoke_result_t<const F&>;
  using T = typename std::invoke_result_t<Next&>::value_type;
  return Dataset<T>(make_generator([start = std::move(start)]() -> Generator {
    return [next = start()]() mutable -> std::optional<Element> {
      std::optional<T> value = next();
      if (!value) return std::nullopt;
      return to_element(std::move(*value));
    };
  }));
}

/// Tuples of the elements of several datasets; ends with the shortest.
template <class... T>
  requires(sizeof...(T) > 0)
Dataset<std::tuple<T...>> zip(const Dataset<T>&... datasets) {
  return Dataset<std::tuple<T...>>(make_zip({datasets.node()...}));
}

/// Draws the dataset that provides each element at random, by weight (equal if empty). A dataset
/// that has ended is skipped or, by option, ends everything.
template <Nest T>
Dataset<T> sample_from_datasets(const std::vector<Dataset<T>>& datasets,
                                std::vector<double> weights = {},
                                const SampleOptions& options = {}) {
  std::vector<NodePtr> nodes;
  for (const Dataset<T>& each : datasets) nodes.push_back(each.node());
  return Dataset<T>(make_sample(std::move(nodes), std::move(weights), options));
}

}  // namespace tutti::data

#include "tutti/data/internal/dataset_templates.h"  // IWYU pragma: export
