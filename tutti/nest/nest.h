// SPDX-License-Identifier: Apache-2.0
//
// A nest is a value made of tensors: a leaf (tensor, IndexedSlices, arithmetic type, string), or a
// tuple, pair, array, vector, optional, string-keyed map or plain struct of nests. Nothing has to
// be registered: structs are taken apart by structured bindings. For third-party types that are not
// aggregates, specialise nest_fields. Everything is a static member or a qualified call: an
// unqualified `stack(x)` would find LibTorch's.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tutti/nest/internal/aggregate.h"
#include "tutti/nest/leaf.h"

namespace tutti {

/// Lists the fields of a type that is not an aggregate:
///
///   template <> struct tutti::nest_fields<Example> {
///     static auto of(auto& e) { return std::tie(e.data, e.target); }
///   };
template <class T>
struct nest_fields;

/// visit(value, visitor) calls, in a fixed order,
///   visitor.leaf(x)                  for each leaf,
///   visitor.open(kind, size), visitor.close()   around the parts of a node,
///   visitor.key(name)                before each value of a map.
/// and, if it has them, visitor.prepare(x) with a vector, map or optional before its parts are
/// visited, and visitor.strings(x) with a vector of strings instead of its parts. Not specialised
/// for types that are not nests.
template <class T>
struct nest {
  static constexpr bool is_nest = false;
};

/// The kinds of inner nodes; the character stands for the kind when structures are compared.
enum class NodeKind : char {
  kTuple = '(',
  kVector = '[',
  kMap = '{',
  kOptional = '?',
  kStruct = 's'
};

namespace internal {

template <class T>
inline constexpr bool is_scalar_leaf =
    std::is_arithmetic_v<T> && !std::is_const_v<T> && !std::is_same_v<T, long double> &&
    !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char16_t> && !std::is_same_v<T, char32_t>;

template <class T>
inline constexpr bool is_leaf = is_scalar_leaf<T> || std::is_same_v<T, at::Tensor> ||
                                std::is_same_v<T, IndexedSlices> || std::is_same_v<T, std::string>;

template <class T>
concept HasNestFields = requires(T& value) {
  nest_fields<T>::of(value);
};

// Fields of a struct as a tuple of references.
template <class T>
auto fields_of(T& value) {
  using Plain = std::remove_const_t<T>;
  if constexpr (HasNestFields<Plain>) {
    return nest_fields<Plain>::of(value);
  } else {
    return internal::aggregate_fields(value);
  }
}

template <class Tuple>
struct all_nests;
template <class... T>
struct all_nests<std::tuple<T...>> {
  static constexpr bool value = (nest<std::remove_reference_t<T>>::is_nest && ...);
};

// What all types with a fixed number of parts have in common.
template <NodeKind kKind>
struct fixed_node {
  template <class Parts, class V>
  static void visit_parts(Parts&& parts, V& visitor) {
    std::apply(
        [&](auto&... part) {
          visitor.open(kKind, sizeof...(part));
          (nest<std::remove_cvref_t<decltype(part)>>::visit(part, visitor), ...);
          visitor.close();
        },
        parts);
  }
};

// Lets a visitor that builds values give a node its size first.
template <class U, class V>
void prepare_node(U& value, V& visitor) {
  if constexpr (requires { visitor.prepare(value); }) visitor.prepare(value);
}

template <class Map>
struct map_node {
  static constexpr bool is_nest = nest<typename Map::mapped_type>::is_nest;

  template <class U, class V>
  static void visit(U& value, V& visitor) {
    prepare_node(value, visitor);
    using Value = std::remove_reference_t<decltype((value.begin()->second))>;
    std::vector<std::pair<std::string_view, Value*>> sorted;
    for (auto& [key, part] : value) sorted.emplace_back(key, &part);
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    visitor.open(NodeKind::kMap, sorted.size());
    for (auto& [key, part] : sorted) {
      visitor.key(key);
      nest<typename Map::mapped_type>::visit(*part, visitor);
    }
    visitor.close();
  }
};

}  // namespace internal

template <class T>
  requires internal::is_leaf<T>
struct nest<T> {
  static constexpr bool is_nest = true;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    visitor.leaf(value);
  }
};

template <class... T>
struct nest<std::tuple<T...>> : internal::fixed_node<NodeKind::kTuple> {
  static constexpr bool is_nest = (nest<T>::is_nest && ...) && sizeof...(T) > 0;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    visit_parts(value, visitor);
  }
};

template <class A, class B>
struct nest<std::pair<A, B>> : internal::fixed_node<NodeKind::kTuple> {
  static constexpr bool is_nest = nest<A>::is_nest && nest<B>::is_nest;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    visit_parts(std::tie(value.first, value.second), visitor);
  }
};

template <class T, size_t N>
struct nest<std::array<T, N>> : internal::fixed_node<NodeKind::kTuple> {
  static constexpr bool is_nest = nest<T>::is_nest;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    visitor.open(NodeKind::kTuple, N);
    for (auto& part : value) nest<T>::visit(part, visitor);
    visitor.close();
  }
};

template <class T>
  requires(!std::is_same_v<T, bool>)
struct nest<std::vector<T>> {
  static constexpr bool is_nest = nest<T>::is_nest;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    if constexpr (requires { visitor.strings(value); }) {
      visitor.strings(value);
    } else {
      internal::prepare_node(value, visitor);
      visitor.open(NodeKind::kVector, value.size());
      for (auto& part : value) nest<T>::visit(part, visitor);
      visitor.close();
    }
  }
};

template <class T>
struct nest<std::optional<T>> {
  static constexpr bool is_nest = nest<T>::is_nest;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    internal::prepare_node(value, visitor);
    visitor.open(NodeKind::kOptional, value.has_value() ? 1 : 0);
    if (value) nest<T>::visit(*value, visitor);
    visitor.close();
  }
};

template <class T>
struct nest<std::map<std::string, T>> : internal::map_node<std::map<std::string, T>> {};
template <class T>
struct nest<std::unordered_map<std::string, T>>
    : internal::map_node<std::unordered_map<std::string, T>> {};

template <class T>
  requires(internal::HasNestFields<T> || internal::UsableAggregate<T>)
struct nest<T> : internal::fixed_node<NodeKind::kStruct> {
  static constexpr bool is_nest =
      internal::all_nests<decltype(internal::fields_of(std::declval<T&>()))>::value;
  template <class U, class V>
  static void visit(U& value, V& visitor) {
    fixed_node::visit_parts(internal::fields_of(value), visitor);
  }
};

/// A type whose leaves can be listed.
template <class T>
concept Nest = nest<T>::is_nest;

namespace internal {

/// Lists the leaves of a visited value. Used within one visit.
struct LeafCollector {
  LeafList leaves;

  void open(NodeKind, size_t) {}
  void close() {}
  void key(std::string_view) {}

  template <class L>
  void leaf(L& value) {
    using T = std::remove_const_t<L>;
    void* data = const_cast<T*>(&value);
    if constexpr (std::is_same_v<T, at::Tensor>) {
      leaves.push_back({Leaf::Kind::kTensor, 0, false, data});
    } else if constexpr (std::is_same_v<T, IndexedSlices>) {
      leaves.push_back({Leaf::Kind::kIndexedSlices, 0, false, data});
    } else if constexpr (std::is_same_v<T, std::string>) {
      leaves.push_back({Leaf::Kind::kString, 0, false, data});
    } else {
      const auto kind = std::is_same_v<T, bool>       ? Leaf::Kind::kBool
                        : std::is_floating_point_v<T> ? Leaf::Kind::kFloating
                                                      : Leaf::Kind::kInteger;
      leaves.push_back({kind, sizeof(T), std::is_signed_v<T>, data});
    }
  }
};

// The text is equal for two values of one type exactly if their structures (lengths, keys, engaged
// optionals) are equal. It is empty when the type fixes them. Used within one visit.
struct StructureWriter {
  std::string text;

  void open(NodeKind kind, size_t size) {
    if (kind == NodeKind::kVector || kind == NodeKind::kMap || kind == NodeKind::kOptional) {
      text += static_cast<char>(kind) + std::to_string(size) + ' ';
    }
  }
  void close() {}
  void key(std::string_view name) {
    // The length tells "a b" from two keys.
    text += std::to_string(name.size()) + ':' + std::string(name) + ' ';
  }
  template <class L>
  void leaf(L&) {}
};

}  // namespace internal

/// The leaves of a value, in visiting order. They point into the value; those
/// of a const value must not be written.
template <Nest T>
LeafList leaves_of(const T& value) {
  internal::LeafCollector collector;
  nest<T>::visit(value, collector);
  return std::move(collector.leaves);
}

template <Nest T>
LeafList leaves_of(T& value) {
  internal::LeafCollector collector;
  nest<T>::visit(value, collector);
  return std::move(collector.leaves);
}

/// What a value's leaves do not show: "[3 " for a vector of three, "{2 1:a 1:b "
/// for a map with keys a and b, "?0 " for an empty optional.
template <Nest T>
std::string structure_of(const T& value) {
  internal::StructureWriter writer;
  nest<T>::visit(value, writer);
  return std::move(writer.text);
}

}  // namespace tutti
