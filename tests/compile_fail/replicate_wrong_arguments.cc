// SPDX-License-Identifier: Apache-2.0
//
// Arguments that no constructor takes, and a factory that makes no module.

#include <torch/nn/modules/linear.h>

#include "tutti/train/replicated.h"

void wrong(const tutti::Strategy& strategy) {
  tutti::replicate<torch::nn::Linear>(strategy, "four");
  // EXPECT-ERROR: replicate: the module has no constructor for these arguments
  tutti::replicate(strategy, [] { return 4; });
  // EXPECT-ERROR: replicate: the factory must return a module
}
