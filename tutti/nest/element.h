// SPDX-License-Identifier: Apache-2.0
//
// What flows through a pipeline. Nodes are compiled once, so they see an element as a
// flat list of values; its C++ type exists only where a user's function or loop sees it.

#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "tutti/nest/nest.h"

namespace tutti::data {

/// A C++ number with its type. A plain value.
struct Number {
  Leaf::Kind kind = Leaf::Kind::kInteger;  ///< kBool, kInteger or kFloating
  uint8_t bytes = 8;
  bool is_signed = true;
  std::array<std::byte, 8> bits = {};

  template <class T>
    requires std::is_arithmetic_v<T>
  static Number of(T value);

  /// The dtype of a tensor of such numbers. Throws kInvalidArgument for unsigned types of
  /// more than one byte, which LibTorch does not have.
  at::ScalarType dtype() const;

  bool operator==(const Number&) const = default;
};

/// A leaf. Like a tensor, a vector of strings is a single leaf.
using Value = std::variant<at::Tensor, Number, std::string, std::vector<std::string>>;

/// The leaves of one element of a dataset, without its type. A plain value.
struct Element {
  c10::SmallVector<Value, 2> values;
  std::string structure;  ///< Lengths and keys, where the type does not fix them.
};

/// What is known about a leaf before it is read. A plain value.
struct ValueSpec {
  enum class Kind { kUnknown, kTensor, kNumber, kString, kStrings };

  Kind kind = Kind::kUnknown;
  std::optional<at::ScalarType> dtype = std::nullopt;
  std::optional<std::vector<int64_t>> shape = std::nullopt;  ///< -1: not known

  bool operator==(const ValueSpec&) const = default;
};

/// The leaves of an element; nullopt when not even their number is known.
using ElementSpec = std::optional<std::vector<ValueSpec>>;

/// "(float32[-1, 3], string)"
std::string to_text(const ElementSpec& spec);

/// The spec of an element at hand.
ElementSpec spec_of(const Element& element);

namespace internal {

template <class T>
inline constexpr bool is_string_vector =
    std::is_same_v<std::remove_const_t<T>, std::vector<std::string>>;

/// Moves the leaves of a visited value into an element. Used within one visit.
struct ElementWriter {
  Element& element;

  void open(NodeKind kind, size_t size) { structure.open(kind, size); }
  void close() {}
  void key(std::string_view name) { structure.key(name); }
  template <class L>
    requires is_string_vector<L>
  void strings(L& value) { element.values.emplace_back(std::move(value)); }
  template <class L>
  void leaf(L& value) {
    static_assert(!std::is_same_v<L, IndexedSlices>,
                  "an element of a dataset cannot hold IndexedSlices; use their two tensors");
    if constexpr (std::is_arithmetic_v<L>) {
      element.values.emplace_back(Number::of(value));
    } else {
      element.values.emplace_back(std::move(value));
    }
  }

  tutti::internal::StructureWriter structure = {};
};

[[noreturn]] void throw_bad_element(const Element& element, const char* expected);

/// Gives vectors, optionals and maps the lengths and keys in the structure text; leaves keep their
/// values. Used within one visit.
struct StructureReader {
  Element& element;
  std::string_view structure = {};

  void open(NodeKind, size_t) {}
  void close() {}
  void key(std::string_view) { take_key(); }

  template <class T>
  void prepare(std::vector<T>& value) {
    value.resize(take_size(NodeKind::kVector));
  }
  template <class T>
  void prepare(std::optional<T>& value) {
    if (take_size(NodeKind::kOptional) == 1) {
      value.emplace();
    } else {
      value.reset();
    }
  }
  template <class M>
    requires requires { typename M::mapped_type; }
  void prepare(M& value) {
    using Mapped = typename M::mapped_type;
    value.clear();
    const size_t size = take_size(NodeKind::kMap);
    // All keys are needed now, but the structures of their values come in between.
    StructureReader ahead{element, structure};
    for (size_t i = 0; i < size; ++i) {
      value[ahead.take_key()];
      Mapped passed_over{};
      nest<Mapped>::visit(passed_over, ahead);
    }
  }
  template <class L>
    requires is_string_vector<L>
  void strings(L&) {}
  template <class L>
  void leaf(L&) {}

 private:
  size_t take_size(NodeKind kind) {
    if (structure.empty() || structure[0] != static_cast<char>(kind)) {
      throw_bad_element(element, "a different structure");
    }
    structure.remove_prefix(1);
    return take_number();
  }
  std::string take_key() {
    const size_t size = take_number();  // and the colon
    if (size >= structure.size()) throw_bad_element(element, "different keys");
    std::string name(structure.substr(0, size));
    structure.remove_prefix(size + 1);
    return name;
  }
  // Reads a number and the character after it.
  size_t take_number() {
    size_t number = 0;
    const char* const begin = structure.data();
    const char* const after = std::from_chars(begin, begin + structure.size(), number).ptr;
    const auto length = static_cast<size_t>(after - begin);
    if (length == 0 || length == structure.size()) {
      throw_bad_element(element, "a different structure");
    }
    structure.remove_prefix(length + 1);
    return number;
  }
};

/// Fills a default-constructed value. Used within one visit.
struct ElementReader : StructureReader {
  size_t next = 0;

  template <class L>
    requires is_string_vector<L>
  void strings(L& value) { value = std::move(take<std::vector<std::string>>()); }
  template <class L>
  void leaf(L& value) {
    if constexpr (std::is_arithmetic_v<L>) {
      const Number number = take<Number>();
      if (!(Number::of(L{}).kind == number.kind && sizeof(L) == number.bytes)) {
        throw_bad_element(element, "a number of a different type");
      }
      std::memcpy(&value, number.bits.data(), sizeof(L));
    } else {
      value = std::move(take<L>());
    }
  }

 private:
  template <class V>
  V& take() {
    if (next >= element.values.size() || !std::holds_alternative<V>(element.values[next])) {
      throw_bad_element(element, "different leaves");
    }
    return std::get<V>(element.values[next++]);
  }
};

}  // namespace internal

template <class T>
  requires std::is_arithmetic_v<T> Number Number::of(T value) {
    Number number;
    number.kind = std::is_same_v<T, bool>       ? Leaf::Kind::kBool
                  : std::is_floating_point_v<T> ? Leaf::Kind::kFloating
                                                : Leaf::Kind::kInteger;
    number.bytes = sizeof(T);
    number.is_signed = std::is_signed_v<T>;
    std::memcpy(number.bits.data(), &value, sizeof(T));
    return number;
  }

template <Nest T>
Element to_element(T value) {
  Element element;
  internal::ElementWriter writer{element};
  nest<T>::visit(value, writer);
  element.structure = std::move(writer.structure.text);
  return element;
}

/// The value of an element, from which it is moved.
template <Nest T>
T from_element(Element&& element) {
  static_assert(std::is_default_constructible_v<T>,
                "an element of a dataset must be default-constructible");
  T value{};
  internal::ElementReader reader{{element, element.structure}};
  nest<T>::visit(value, reader);
  return value;
}
template <Nest T>
T from_element(const Element& element) {
  return from_element<T>(Element(element));
}

}  // namespace tutti::data
