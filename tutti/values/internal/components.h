// SPDX-License-Identifier: Apache-2.0
//
// What PerReplica and Mirrored have in common: a fixed number of components.

#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/nest/print.h"

namespace tutti::internal {

/// Slots that replicas fill from their own threads, each its own slot. (Never a
/// vector<bool>: neighbouring bits cannot be written at the same time.)
template <class T>
using Slots = std::vector<std::optional<T>>;

/// Distinguishes construction from slots from construction from a braced list.
struct FromSlots {};

[[noreturn]] void throw_no_component(const char* class_name, size_t index, size_t size);
[[noreturn]] void throw_not_only(size_t size);
[[noreturn]] void throw_no_rows();
[[noreturn]] void throw_empty(const char* class_name);

/// One or more values, in slots. A plain value; threads may use different slots concurrently.
template <class T>
class Components {
  static_assert(!std::is_reference_v<T>, "a component is a value, not a reference");

 public:
  template <class Value>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = std::remove_const_t<Value>;
    using difference_type = std::ptrdiff_t;
    using pointer = Value*;
    using reference = Value&;
    using Slot =
        std::conditional_t<std::is_const_v<Value>, const std::optional<T>, std::optional<T>>;

    Iterator() = default;
    explicit Iterator(Slot* slot) : slot_(slot) {}

    reference operator*() const { return **slot_; }
    pointer operator->() const { return std::addressof(**slot_); }
    Iterator& operator++() {
      ++slot_;
      return *this;
    }
    Iterator operator++(int) { return Iterator(slot_++); }
    bool operator==(const Iterator&) const = default;

   private:
    Slot* slot_ = nullptr;
  };

  Components(const char* class_name, std::vector<T> values) {
    if (values.empty()) throw_empty(class_name);
    slots_.reserve(values.size());
    for (auto&& value : values) slots_.emplace_back(std::move(value));  // not T&: vector<bool>
  }
  Components(const char* class_name, Slots<T> slots) : slots_(std::move(slots)) {
    if (slots_.empty()) throw_empty(class_name);
  }

  size_t size() const { return slots_.size(); }

  T& at(const char* class_name, size_t i) {
    if (i >= size()) throw_no_component(class_name, i, size());
    return *slots_[i];
  }
  const T& at(const char* class_name, size_t i) const {
    if (i >= size()) throw_no_component(class_name, i, size());
    return *slots_[i];
  }

  auto begin() { return Iterator<T>(slots_.data()); }
  auto end() { return Iterator<T>(slots_.data() + slots_.size()); }
  auto begin() const { return Iterator<const T>(slots_.data()); }
  auto end() const { return Iterator<const T>(slots_.data() + slots_.size()); }

  void print(std::ostream& out, const char* class_name) const {
    out << class_name << ":{\n";
    for (size_t i = 0; i < size(); ++i) {
      out << "  " << i << ": ";
      internal::print_value(out, *slots_[i]);
      out << (i + 1 < size() ? ",\n" : "\n");
    }
    out << '}';
  }

 private:
  Slots<T> slots_;
};

}  // namespace tutti::internal
