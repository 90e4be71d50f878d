// SPDX-License-Identifier: Apache-2.0
//
// The templates of Dataset; included by its header.

#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "tutti/data/dataset.h"
#include "tutti/data/internal/batched.h"

namespace tutti::data {

/// An input iterator; copies share the pass, so one thread uses them all.
template <Nest T>
class Dataset<T>::RangeIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = T;
  using difference_type = std::ptrdiff_t;
  using pointer = T*;
  using reference = T&;

  explicit RangeIterator(NodePtr node)
      : pass_(std::make_shared<Iterator<T>>(std::move(node))), value_(pass_->next()) {}

  T& operator*() const { return *value_; }
  T* operator->() const { return &*value_; }
  RangeIterator& operator++() {
    if constexpr (std::is_same_v<T, std::string>) {
      pass_->use_again(std::move(*value_));
    }
    value_.reset();  // first, so that two elements never coexist
    value_ = pass_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const RangeIterator& it, std::default_sentinel_t) {
    return !it.value_.has_value();
  }

 private:
  std::shared_ptr<Iterator<T>> pass_;
  mutable std::optional<T> value_;
};

template <Nest T>
template <class F>
auto Dataset<T>::map(F fn, const MapOptions& options) const {
  using Call = internal::ElementCall<F, T>;
  static_assert(Call::kCallable,
                "Dataset::map: fn cannot be called with an element (a tuple may arrive whole or "
                "spread out; a `mutable` lambda is not accepted)");
  if constexpr (Call::kCallable) {
    using R = std::decay_t<typename Call::Result>;
    static_assert(Nest<R>, "Dataset::map: fn must return a nest of tensors, numbers and strings");
    return Dataset<R>(make_map(
        node_,
        [fn = std::move(fn)](Element&& element) {
          return to_element<R>(Call::apply(fn, from_element<T>(std::move(element))));
        },
        options));
  }
}

template <Nest T>
template <class F>
Dataset<T> Dataset<T>::filter(F fn) const {
  using Call = internal::ElementCall<F, T>;
  static_assert(Call::kCallable, "Dataset::filter: fn cannot be called with an element");
  return Dataset(make_filter(node_, [fn = std::move(fn)](const Element& element) -> bool {
    return Call::apply(fn, from_element<T>(element));
  }));
}

template <Nest T>
template <class F>
auto Dataset<T>::flat_map(F fn) const {
  using Call = internal::ElementCall<F, T>;
  static_assert(Call::kCallable, "Dataset::flat_map: fn cannot be called with an element");
  using R = std::decay_t<typename Call::Result>;
  return R(make_flat_map(node_, [fn = std::move(fn)](Element element) {
    return Call::apply(fn, from_element<T>(std::move(element))).node();
  }));
}

template <Nest T>
template <class F>
auto Dataset<T>::interleave(F fn, const InterleaveOptions& options) const {
  using Call = internal::ElementCall<F, T>;
  static_assert(Call::kCallable, "Dataset::interleave: fn cannot be called with an element");
  using R = std::decay_t<typename Call::Result>;
  return R(make_interleave(
      node_,
      [fn = std::move(fn)](Element element) {
        return Call::apply(fn, from_element<T>(std::move(element))).node();
      },
      options));
}

}  // namespace tutti::data
