// SPDX-License-Identifier: Apache-2.0
//
// Weights that layers share. LibTorch's clone() gives every layer its own weight; this ties them
// again.

#pragma once

#include <torch/nn/module.h>

namespace tutti::internal {

/// Ties the weights of `clone` like those of `original`. Throws kInvalidArgument for a tie that
/// only the module's own constructor can make.
void tie_as(const torch::nn::Module& original, torch::nn::Module& clone);

}  // namespace tutti::internal
