// SPDX-License-Identifier: Apache-2.0
//
// Takes plain structs apart: counts the fields of an aggregate by trying how
// many initialisers it accepts, then binds them. Limits: 1 to 16 fields; no base
// class, C array, bit-field, const or reference field.

#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tutti::internal {

inline constexpr size_t kMaxAggregateFields = 16;

// Stands for an initialiser of any type but T itself (that would be a copy).
template <class T>
struct AnyField {
  template <class U>
    requires(!std::is_same_v<std::remove_cvref_t<U>, T>)
  operator U() const noexcept;  // NOLINT(google-explicit-constructor)
};

// Stands for an initialiser of a base class of T.
template <class T>
struct AnyBase {
  template <class U>
    requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>)
  operator U() const noexcept;  // NOLINT(google-explicit-constructor)
};

template <class T, size_t>
using AnyFieldAt = AnyField<T>;

template <class T, size_t... I>
constexpr bool accepts(std::index_sequence<I...>) {
  return requires { T{AnyFieldAt<T, I>{}...}; };
}

// Does T accept the nested list {any, any} after the first I, followed by J more?
template <class T, size_t... I, size_t... J>
constexpr bool accepts_nested(std::index_sequence<I...>, std::index_sequence<J...>) {
  return requires {
    T{AnyFieldAt<T, I>{}..., {AnyField<T>{}, AnyField<T>{}}, AnyFieldAt<T, J>{}...};
  };
}

template <class T, size_t N = kMaxAggregateFields + 1>
constexpr size_t count_fields() {
  if constexpr (N == 0) {
    return 0;
  } else if constexpr (accepts<T>(std::make_index_sequence<N>{})) {
    return N;
  } else {
    return count_fields<T, N - 1>();
  }
}

// Brace elision counts the elements of a C array as fields. For an array, {any, any} initialises
// several elements, so that fewer initialisers may follow.
template <class T, size_t N, size_t I = 0>
constexpr bool has_c_array() {
  if constexpr (I >= N) {
    return false;
  } else if constexpr (accepts_nested<T>(std::make_index_sequence<I>{},
                                         std::make_index_sequence<0>{}) &&
                       !accepts_nested<T>(std::make_index_sequence<I>{},
                                          std::make_index_sequence<N - I - 1>{})) {
    return true;
  } else {
    return has_c_array<T, N, I + 1>();
  }
}

template <class T>
constexpr bool is_usable_aggregate() {
  // A struct with an rvalue reference cannot be copied.
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T> ||
                !std::is_copy_constructible_v<T>) {
    return false;
  } else {
    constexpr size_t fields = count_fields<T>();
    if constexpr (fields == 0 || fields > kMaxAggregateFields) {
      return false;
    } else {
      constexpr bool has_base = requires { T{AnyBase<T>{}}; };
      return !has_base && !has_c_array<T, fields>();
    }
  }
}

template <class T>
concept UsableAggregate = is_usable_aggregate<T>();

// The fields as a tuple of references.
template <class T>
constexpr auto aggregate_fields(T& v) {
  constexpr size_t n = count_fields<std::remove_const_t<T>>();
  if constexpr (n == 1) {
    auto& [a] = v;
    return std::tie(a);
  } else if constexpr (n == 2) {
    auto& [a, b] = v;
    return std::tie(a, b);
  } else if constexpr (n == 3) {
    auto& [a, b, c] = v;
    return std::tie(a, b, c);
  } else if constexpr (n == 4) {
    auto& [a, b, c, d] = v;
    return std::tie(a, b, c, d);
  } else if constexpr (n == 5) {
    auto& [a, b, c, d, e] = v;
    return std::tie(a, b, c, d, e);
  } else if constexpr (n == 6) {
    auto& [a, b, c, d, e, f] = v;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (n == 7) {
    auto& [a, b, c, d, e, f, g] = v;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (n == 8) {
    auto& [a, b, c, d, e, f, g, h] = v;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (n == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = v;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (n == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (n == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (n == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (n == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (n == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o);
  } else if constexpr (n == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p);
  } else {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q);
  }
}

}  // namespace tutti::internal
