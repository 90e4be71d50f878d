// SPDX-License-Identifier: Apache-2.0
//
// Layers of torch::nn that refuse 0 rows or 1 row in training, which the last batch of an epoch may
// give a replica. docs/guide/training-loop.md has the table.

#pragma once

#include <string>

#include <torch/nn/module.h>

namespace tutti::internal {

/// Returns what to add to an error of LibTorch that such a layer of `module` may have thrown on
/// this replica: the layers, and what to do. Empty for any other error.
std::string explain_few_rows(const torch::nn::Module& module, int replica,
                             const std::string& error);

}  // namespace tutti::internal
