// SPDX-License-Identifier: Apache-2.0
//
// How LibTorch owns the nodes of its autograd graph: by std::shared_ptr in versions before 2.15, by
// c10::intrusive_ptr in later ones.

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace tutti::internal {

/// Shares ownership of a node.
using NodeHandle = std::decay_t<decltype(torch::autograd::impl::grad_accumulator(
    std::declval<const torch::autograd::Variable&>()))>;

template <class T, class... Args>
NodeHandle make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodeHandle, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace tutti::internal
