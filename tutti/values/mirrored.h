// SPDX-License-Identifier: Apache-2.0
//
// The same value on every replica, one copy each.

#pragma once

#include <cstddef>
#include <ostream>
#include <utility>
#include <vector>

#include "tutti/values/context_frame.h"
#include "tutti/values/internal/components.h"

namespace tutti {

/// The code that makes one guarantees that all components are equal. A plain value.
template <class T>
class Mirrored {
 public:
  using value_type = T;

  /// Throws kInvalidArgument when there is no component.
  explicit Mirrored(std::vector<T> components) : components_("Mirrored", std::move(components)) {}

  size_t size() const { return components_.size(); }
  const T& operator[](size_t i) const& { return components_.at("Mirrored", i); }
  T operator[](size_t i) && { return std::move(components_.at("Mirrored", i)); }

  /// Inside Strategy::run the component of this replica, elsewhere the first one.
  const T& value() const& { return components_.at("Mirrored", index()); }
  T value() && { return std::move(components_.at("Mirrored", index())); }

  auto begin() const { return components_.begin(); }
  auto end() const { return components_.end(); }

  friend std::ostream& operator<<(std::ostream& out, const Mirrored& value) {
    value.components_.print(out, "Mirrored");
    return out;
  }

 private:
  size_t index() const {
    const int replica = internal::current_local_replica();
    return replica >= 0 && static_cast<size_t>(replica) < size() ? static_cast<size_t>(replica) : 0;
  }

  internal::Components<T> components_;
};

namespace internal {

template <class T>
inline constexpr bool is_mirrored = false;
template <class T>
inline constexpr bool is_mirrored<Mirrored<T>> = true;

}  // namespace internal
}  // namespace tutti
