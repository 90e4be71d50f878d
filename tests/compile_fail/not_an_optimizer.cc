// SPDX-License-Identifier: Apache-2.0
//
// A class that is not an optimizer of torch::optim.

#include "tutti/train/optimizer/distributed_optimizer.h"

struct Mine {};

void wrong(const tutti::Replicated<torch::nn::Module>& model) {
  tutti::DistributedOptimizer<Mine> optimizer(model, torch::optim::SGDOptions(0.1));
  // EXPECT-ERROR: DistributedOptimizer: the class must be derived from torch::optim::Optimizer
}
