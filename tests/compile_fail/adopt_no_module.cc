// SPDX-License-Identifier: Apache-2.0
//
// Something that is not a module, and a factory that makes another module.

#include <torch/nn/modules/linear.h>

#include "tutti/train/replicated.h"

void wrong(const tutti::Strategy& strategy, const torch::nn::Linear& linear) {
  tutti::adopt(strategy, 3);
  // EXPECT-ERROR: adopt: the module must be a shared_ptr to a module or a ModuleHolder
  tutti::adopt(strategy, linear, [] { return torch::nn::Flatten(); });
  // EXPECT-ERROR: factory must return such modules of the same type
}
