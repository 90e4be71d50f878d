// SPDX-License-Identifier: Apache-2.0
//
// The forms of input that the old functions accept: lists of arrays, and functions that return one
// element per call.

#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/data/dataset.h"
#include "tutti/strategy/input_options.h"

namespace tutti::v1::internal {

/// Throws kInvalidArgument for an empty list and for arrays of different shapes or dtypes.
at::Tensor stack_arrays(const std::vector<at::Tensor>& arrays);

/// The value with each list of arrays stacked.
template <class T>
T stacked(const T& value) {
  return value;
}
inline at::Tensor stacked(const std::vector<at::Tensor>& arrays) { return stack_arrays(arrays); }
template <class... T>
auto stacked(const std::tuple<T...>& values);
template <class A, class B>
auto stacked(const std::pair<A, B>& values);
template <class T>
auto stacked(const std::map<std::string, T>& values);
template <class T>
auto stacked(const std::unordered_map<std::string, T>& values);

template <class Map>
auto stacked_values(const Map& values) {
  std::map<std::string, decltype(stacked(values.begin()->second))> result;
  for (const auto& [name, value] : values) result.emplace(name, stacked(value));
  return result;
}

template <class... T>
auto stacked(const std::tuple<T...>& values) {
  return std::apply([](const T&... parts) { return std::make_tuple(stacked(parts)...); }, values);
}
template <class A, class B>
auto stacked(const std::pair<A, B>& values) {
  return std::make_pair(stacked(values.first), stacked(values.second));
}
template <class T>
auto stacked(const std::map<std::string, T>& values) {
  return stacked_values(values);
}
template <class T>
auto stacked(const std::unordered_map<std::string, T>& values) {
  return stacked_values(values);
}

template <class T>
inline constexpr bool is_dataset = false;
template <class T>
inline constexpr bool is_dataset<data::Dataset<T>> = true;

template <class T>
struct element_of {
  using type = T;
};
template <class T>
struct element_of<std::optional<T>> {
  using type = T;
};

/// The dataset that input_fn(context) returns; if that is a function of elements, each pass over
/// the result calls input_fn again.
template <class F>
auto dataset_of(const F& input_fn, const InputContext& context) {
  using R = std::decay_t<std::invoke_result_t<const F&, const InputContext&>>;
  static_assert(is_dataset<R> || std::is_invocable_v<R&>,
                "Strategy::make_input_fn_iterator: input_fn must return a tutti::data::Dataset, or "
                "a function that returns one element (or an optional of one) per call");
  if constexpr (is_dataset<R>) {
    return input_fn(context);
  } else if constexpr (std::is_invocable_v<R&>) {
    using T = typename element_of<std::decay_t<std::invoke_result_t<R&>>>::type;
    return data::from_generator([input_fn, context] {
      return [next = input_fn(context)]() mutable -> std::optional<T> { return next(); };
    });
  }
}

}  // namespace tutti::v1::internal
