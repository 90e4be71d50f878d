// SPDX-License-Identifier: Apache-2.0
//
// The types of batches and rows, and how an element is passed to a function.

#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/nest/nest.h"

namespace tutti::data::internal {

[[noreturn]] void throw_end_of_dataset();

/// Finds fields of structs whose type would change in a batch.
struct BatchedFields {
  void open(NodeKind, size_t) {}
  void close() {}
  void key(std::string_view) {}
  template <class L>
  void leaf(L&) {
    static_assert(std::is_same_v<std::remove_const_t<L>, at::Tensor>,
                  "Dataset::batch: a struct keeps its type in a batch, so all of its fields must "
                  "be tensors; turn it into a tuple, or its numbers into tensors, with map()");
  }
};

template <class T>
void check_batched_fields(T& value) {
  BatchedFields fields;
  nest<T>::visit(value, fields);
}

/// Structs keep their type.
template <class T>
struct batched {
  static_assert(std::is_same_v<T, at::Tensor> || !std::is_class_v<T> ||
                    !tutti::internal::is_leaf<T>,
                "this type cannot be batched");
  static_assert((static_cast<void>(&check_batched_fields<T>), true));
  using type = T;
};
template <class T>
  requires std::is_arithmetic_v<T>
struct batched<T> {
  using type = at::Tensor;
};
template <>
struct batched<std::string> {
  using type = std::vector<std::string>;
};
template <class... T>
struct batched<std::tuple<T...>> {
  using type = std::tuple<typename batched<T>::type...>;
};
template <class A, class B>
struct batched<std::pair<A, B>> {
  using type = std::pair<typename batched<A>::type, typename batched<B>::type>;
};
template <class T, size_t N>
struct batched<std::array<T, N>> {
  using type = std::array<typename batched<T>::type, N>;
};
template <class T>
struct batched<std::vector<T>> {
  using type = std::vector<typename batched<T>::type>;
};
template <class T>
struct batched<std::optional<T>> {
  using type = std::optional<typename batched<T>::type>;
};
template <class T>
struct batched<std::map<std::string, T>> {
  using type = std::map<std::string, typename batched<T>::type>;
};
template <class T>
struct batched<std::unordered_map<std::string, T>> {
  using type = std::unordered_map<std::string, typename batched<T>::type>;
};
template <class T>
using BatchOf = typename batched<T>::type;

template <class T>
struct unbatched {
  using type = T;
};
template <>
struct unbatched<std::vector<std::string>> {
  using type = std::string;
};
template <class... T>
struct unbatched<std::tuple<T...>> {
  using type = std::tuple<typename unbatched<T>::type...>;
};
template <class A, class B>
struct unbatched<std::pair<A, B>> {
  using type = std::pair<typename unbatched<A>::type, typename unbatched<B>::type>;
};
template <class T, size_t N>
struct unbatched<std::array<T, N>> {
  using type = std::array<typename unbatched<T>::type, N>;
};
template <class T>
struct unbatched<std::vector<T>> {
  using type = std::vector<typename unbatched<T>::type>;
};
template <class T>
struct unbatched<std::optional<T>> {
  using type = std::optional<typename unbatched<T>::type>;
};
template <class T>
struct unbatched<std::map<std::string, T>> {
  using type = std::map<std::string, typename unbatched<T>::type>;
};
template <class T>
struct unbatched<std::unordered_map<std::string, T>> {
  using type = std::unordered_map<std::string, typename unbatched<T>::type>;
};
template <class T>
using RowOf = typename unbatched<T>::type;

template <class T>
inline constexpr bool is_element_tuple = false;
template <class... T>
inline constexpr bool is_element_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_element_tuple<std::pair<A, B>> = true;

template <class F, class T>
struct applies_spread : std::false_type {};
template <class F, class... T>
struct applies_spread<F, std::tuple<T...>> : std::is_invocable<const F&, T...> {};
template <class F, class A, class B>
struct applies_spread<F, std::pair<A, B>> : std::is_invocable<const F&, A, B> {};

/// Calls fn with an element: a tuple is spread into its parts if fn accepts that, else passed
/// whole.
template <class F, class T>
struct ElementCall {
  static constexpr bool kSpread = applies_spread<F, T>::value;
  static constexpr bool kCallable =
      std::disjunction_v<applies_spread<F, T>, std::is_invocable<const F&, T>>;

  static decltype(auto) apply(const F& fn, T value) {
    if constexpr (kSpread) {
      return std::apply(fn, std::move(value));
    } else {
      return fn(std::move(value));
    }
  }
  using Result = decltype(apply(std::declval<const F&>(), std::declval<T>()));
};

}  // namespace tutti::data::internal
