// SPDX-License-Identifier: Apache-2.0
//
// One value per local replica: what Strategy::run returns and takes apart.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/values/internal/components.h"

namespace tutti {

/// Component i belongs to local replica i. A plain value, as copyable as T is; threads may use
/// different components concurrently.
///
/// A per-replica tuple or pair splits into its parts:
///   auto [loss, count] = strategy.run(step, batch);   // two PerReplica values
template <class T>
class PerReplica {
 public:
  using value_type = T;

  /// Throws kInvalidArgument when there is no component.
  explicit PerReplica(std::vector<T> components)
      : components_("PerReplica", std::move(components)) {}
  /// A step of a distributed dataset.
  PerReplica(std::vector<T> components, int64_t global_rows)
      : components_("PerReplica", std::move(components)), global_rows_(global_rows) {}
  PerReplica(internal::FromSlots, internal::Slots<T> slots)
      : components_("PerReplica", std::move(slots)) {}

  size_t size() const { return components_.size(); }

  /// Throws kInvalidArgument when i is out of range. On a temporary it returns
  /// a value, so that no reference can dangle.
  T& operator[](size_t i) & { return components_.at("PerReplica", i); }
  const T& operator[](size_t i) const& { return components_.at("PerReplica", i); }
  T operator[](size_t i) && { return std::move(components_.at("PerReplica", i)); }

  /// The single component; throws kFailedPrecondition when there are several.
  T& only() & { return check_only(), (*this)[0]; }
  const T& only() const& { return check_only(), (*this)[0]; }
  T only() && { return check_only(), std::move(*this)[0]; }

  /// The number of rows of a distributed dataset's step on all replicas of all workers, as counted
  /// in the first component that has rows. Workers exchange it while they read ahead, so
  /// average_loss_over() needs no round trip. Throws kFailedPrecondition for any other value.
  int64_t global_rows() const {
    if (global_rows_ < 0) internal::throw_no_rows();
    return global_rows_;
  }

  /// Applies `f` (a callable or a pointer to a member) to each component.
  template <class F>
  auto map(F&& f) const {
    using R = std::decay_t<std::invoke_result_t<F&, const T&>>;
    internal::Slots<R> results(size());
    for (size_t i = 0; i < size(); ++i) results[i].emplace(std::invoke(f, (*this)[i]));
    return PerReplica<R>(internal::FromSlots{}, std::move(results));
  }

  auto begin() { return components_.begin(); }
  auto end() { return components_.end(); }
  auto begin() const { return components_.begin(); }
  auto end() const { return components_.end(); }

  friend std::ostream& operator<<(std::ostream& out, const PerReplica& value) {
    value.components_.print(out, "PerReplica");
    return out;
  }

 private:
  void check_only() const {
    if (size() != 1) internal::throw_not_only(size());
  }

  internal::Components<T> components_;
  int64_t global_rows_ = -1;
};

namespace internal {

template <class T>
inline constexpr bool is_per_replica = false;
template <class T>
inline constexpr bool is_per_replica<PerReplica<T>> = true;

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

}  // namespace internal

/// Part I of a per-replica tuple, itself per replica.
template <size_t I, class T>
  requires internal::is_tuple<T>
auto get(const PerReplica<T>& value) {
  return value.map([](const T& parts) { return std::get<I>(parts); });
}

template <size_t I, class T>
  requires internal::is_tuple<T>
auto get(PerReplica<T>&& value) {
  internal::Slots<std::tuple_element_t<I, T>> slots(value.size());
  for (size_t i = 0; i < value.size(); ++i) slots[i].emplace(std::get<I>(std::move(value[i])));
  return PerReplica<std::tuple_element_t<I, T>>(internal::FromSlots{}, std::move(slots));
}

}  // namespace tutti

template <class T>
  requires tutti::internal::is_tuple<T>
struct std::tuple_size<tutti::PerReplica<T>> : std::tuple_size<T> {
};

template <size_t I, class T>
  requires tutti::internal::is_tuple<T>
struct std::tuple_element<I, tutti::PerReplica<T>> {
  using type = tutti::PerReplica<std::tuple_element_t<I, T>>;
};
