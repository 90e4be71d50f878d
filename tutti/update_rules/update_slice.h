// SPDX-License-Identifier: Apache-2.0
//
// What an update rule works on: consecutive elements of parameters, their gradient and their state,
// wherever they are stored. Rules know nothing of modules, strategies or threads.

#pragma once

#include <array>
#include <cstdint>

namespace tutti {

/// No rule has more states.
inline constexpr int kMaxRuleStates = 3;

/// `count` elements. T is float or double. Nothing overlaps; memory needs only the alignment of T.
template <class T>
struct UpdateSlice {
  T* parameter = nullptr;
  const T* gradient = nullptr;
  std::array<T*, kMaxRuleStates> state = {};  ///< As many as the rule's num_states().
  int64_t count = 0;

  /// 1 in the first update of these parameters.
  int64_t step = 1;

  /// The gradient is multiplied by it first, for loss scaling and clipping.
  double gradient_factor = 1;
};

}  // namespace tutti
