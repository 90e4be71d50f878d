// SPDX-License-Identifier: Apache-2.0
//
// The reduction tree by its recursive definition, one element at a time: a tree of n > 1 replicas
// is the full tree of the first p, the largest power of two below n, combined with that of the
// rest.

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/values/reduce_op.h"

#include "tests/support/tensors.h"

namespace tutti::test {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>;

/// The type that inner nodes of the tree hold.
template <class T>
using Inner = std::conditional_t<is_half<T>, float, T>;

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  const bool product = op == ReduceOp::kProduct;
  if constexpr (c10::is_complex<T>::value) {
    if (!product) return T(a.real() + b.real(), a.imag() + b.imag());
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else {
    if (op == ReduceOp::kMin) return is_nan(a) ? a : is_nan(b) ? b : a < b ? a : b;
    if (op == ReduceOp::kMax) return is_nan(a) ? a : is_nan(b) ? b : a > b ? a : b;
    if constexpr (std::is_integral_v<T>) {
      const auto x = static_cast<uint64_t>(a);
      const auto y = static_cast<uint64_t>(b);
      return static_cast<T>(product ? x * y : x + y);
    } else {
      return product ? a * b : a + b;
    }
  }
}

/// leaf(i) is the contribution of replica i, as the inner type.
template <class I, class Leaf>
I tree_node(ReduceOp op, const Leaf& leaf, size_t first, size_t count) {
  if (count == 1) return leaf(first);
  const size_t left = std::bit_ceil(count) / 2;
  return combine(op, tree_node<I>(op, leaf, first, left),
                 tree_node<I>(op, leaf, first + left, count - left));
}

/// The reduction of leaf(0) ... leaf(replicas - 1), all of type T.
template <class T, class Leaf>
T expected_reduction(ReduceOp op, size_t replicas, const Leaf& leaf) {
  using I = Inner<T>;
  const auto inner_leaf = [&](size_t i) { return static_cast<I>(leaf(i)); };
  I root = tree_node<I>(op, inner_leaf, 0, replicas);
  if (op == ReduceOp::kMean) {
    if constexpr (c10::is_complex<T>::value) {
      const auto n = static_cast<typename T::value_type>(replicas);
      root = T(root.real() / n, root.imag() / n);
    } else {
      root = static_cast<I>(root / static_cast<I>(replicas));
    }
  }
  return static_cast<T>(root);
}

/// The reduction of one tensor per replica, in host memory and any layout, by a plain loop over
/// elements. The mean of integers is taken of their sum in int64.
at::Tensor expected_tensor(ReduceOp op, const std::vector<at::Tensor>& components);

/// Whether values of T can be reduced by `op` in place, that is, with a result of the same type.
template <class T>
bool is_defined(ReduceOp op) {
  if (op == ReduceOp::kMean) return !std::is_integral_v<T>;
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return !c10::is_complex<T>::value;
  return true;
}

inline constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin,
                                       ReduceOp::kMax, ReduceOp::kProduct};

}  // namespace tutti::test
