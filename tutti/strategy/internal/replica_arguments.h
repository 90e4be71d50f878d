// SPDX-License-Identifier: Apache-2.0
//
// How the arguments of run() reach one replica.
//
//   PerReplica<T>&, const PerReplica<T>&, PerReplica<T>&&  ->  T&, const T&, T&&
//   Mirrored<T>                                            ->  const T&
//   anything else, A                                       ->  const A&
//
// Either all top-level per-replica tuples and pairs are spread into their parts
// or none is. The spread form is tried first: a generic lambda accepts both, and testing
// the unused form must not instantiate its body.

#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"

namespace tutti::internal {

/// The number of components of a per-replica argument, 0 for others.
template <class A>
size_t component_count(const A& arg) {
  if constexpr (is_per_replica<A> || is_mirrored<A>) {
    return arg.size();
  } else {
    return 0;
  }
}

// A is the deduced type of a forwarding reference. Each replica moves from its
// own component only, so forwarding the same argument N times is safe.
template <class A>
decltype(auto) share(std::remove_reference_t<A>& arg, size_t replica) {
  using Plain = std::remove_cvref_t<A>;
  if constexpr (is_per_replica<Plain>) {
    auto& component = arg[replica];
    if constexpr (std::is_lvalue_reference_v<A>) {
      return (component);
    } else {
      return std::move(component);
    }
  } else if constexpr (is_mirrored<Plain>) {
    return std::as_const(arg)[replica];
  } else {
    return std::as_const(arg);
  }
}

template <class A>
using Share = decltype(share<A>(std::declval<std::remove_reference_t<A>&>(), size_t{}));

template <class A>
auto whole(std::remove_reference_t<A>& arg, size_t replica) {
  return std::tuple<Share<A>&&>(share<A>(arg, replica));
}

template <class A>
auto spread(std::remove_reference_t<A>& arg, size_t replica) {
  using Plain = std::remove_cvref_t<A>;
  if constexpr (is_per_replica<Plain>) {
    if constexpr (is_tuple<typename Plain::value_type>) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return std::forward_as_tuple(std::get<I>(share<A>(arg, replica))...);
      }
      (std::make_index_sequence<std::tuple_size_v<typename Plain::value_type>>{});
    } else {
      return whole<A>(arg, replica);
    }
  } else {
    return whole<A>(arg, replica);
  }
}

template <class F, class Tuple>
struct applies : std::false_type {};
template <class F, class... T>
struct applies<F, std::tuple<T...>> : std::is_invocable<const F&, T...> {};

template <class F, class... A>
struct ReplicaCall {
  using Parts =
      decltype(std::tuple_cat(spread<A>(std::declval<std::remove_reference_t<A>&>(), size_t{})...));
  using Whole =
      decltype(std::tuple_cat(whole<A>(std::declval<std::remove_reference_t<A>&>(), size_t{})...));

  static constexpr bool kSpread = applies<F, Parts>::value;
  // Not `||`: it would instantiate a generic body for the unused form.
  static constexpr bool kCallable = std::disjunction_v<applies<F, Parts>, applies<F, Whole>>;

  static decltype(auto) apply(const F& fn, size_t replica, std::remove_reference_t<A>&... args) {
    if constexpr (kSpread) {
      return std::apply(fn, std::tuple_cat(spread<A>(args, replica)...));
    } else {
      return std::apply(fn, std::tuple_cat(whole<A>(args, replica)...));
    }
  }

  template <bool kIsCallable, class = void>
  struct result {
    using type = void;
  };
  template <class Dummy>
  struct result<true, Dummy> {
    using type = std::decay_t<decltype(std::apply(
        std::declval<const F&>(), std::declval<std::conditional_t<kSpread, Parts, Whole>>()))>;
  };
  using Result = typename result<kCallable>::type;
};

}  // namespace tutti::internal
