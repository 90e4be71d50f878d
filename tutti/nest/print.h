// SPDX-License-Identifier: Apache-2.0
//
// Values in one line: tensors as Tensor([5. 6.], shape=(2,), dtype=float32),
// nests as tuples, lists and maps of those.

#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "tutti/nest/nest.h"

namespace tutti {

/// Tensor([5. 6.], shape=(2,), dtype=float32). More than 1000 elements are
/// abbreviated to the first and last three of each dimension.
std::string to_text(const at::Tensor& tensor);
std::string to_text(const IndexedSlices& slices);

/// Its parts: "[5. 6.]", "5.0" for a single element, and "(2,)".
std::string elements_text(const at::Tensor& tensor);
std::string shape_text(at::IntArrayRef shape);

namespace internal {

/// The readable C++ name of a type.
std::string type_name(const std::type_info& type);

/// Prints a visited value. Used within one visit.
struct Printer {
  std::ostream& out;
  std::vector<const char*> closers = {};
  bool first = true;

  void open(NodeKind kind, size_t size) {
    separate();
    const bool list = kind == NodeKind::kVector;
    const bool map = kind == NodeKind::kMap;
    if (kind == NodeKind::kOptional) {
      out << (size == 0 ? "nullopt" : "");
      closers.push_back("");
    } else {
      out << (list ? "[" : map ? "{" : "(");
      closers.push_back(list ? "]" : map ? "}" : ")");
    }
    first = true;
  }
  void close() {
    out << closers.back();
    closers.pop_back();
    first = false;
  }
  void key(std::string_view name) {
    separate();
    out << '\'' << name << "': ";
    first = true;
  }

  template <class L>
  void leaf(const L& value) {
    separate();
    if constexpr (std::is_same_v<L, at::Tensor> || std::is_same_v<L, IndexedSlices>) {
      out << to_text(value);
    } else if constexpr (std::is_same_v<L, std::string>) {
      out << '\'' << value << '\'';
    } else if constexpr (std::is_same_v<L, bool>) {
      out << (value ? "true" : "false");
    } else if constexpr (sizeof(L) == 1) {
      out << static_cast<int>(value);
    } else {
      out << value;
    }
    first = false;
  }

  void separate() {
    if (!first) out << ", ";
  }
};

/// Prints nests as above, else by operator<<, else the type and address.
template <class T>
void print_value(std::ostream& out, const T& value) {
  if constexpr (Nest<T>) {
    Printer printer{out};
    nest<T>::visit(value, printer);
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << '<' << type_name(typeid(T)) << " at " << static_cast<const void*>(&value) << '>';
  }
}

}  // namespace internal
}  // namespace tutti
