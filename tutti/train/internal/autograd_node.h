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

/// Whether there are hooks on the tensors that the node made. LibTorch before 2.0 keeps them among
/// the pre_hooks() of the node.
template <class Node>
bool has_tensor_hooks(Node& node) {
  if constexpr (requires { node.tensor_pre_hooks(); }) {
    return !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty();
  } else {
    return false;
  }
}

}  // namespace tutti::internal
