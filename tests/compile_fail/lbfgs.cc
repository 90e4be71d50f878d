// SPDX-License-Identifier: Apache-2.0
//
// LBFGS evaluates the loss several times in a step.

#include "tutti/train/optimizer/distributed_optimizer.h"

void wrong(const tutti::Replicated<torch::nn::Module>& model) {
  tutti::DistributedOptimizer<torch::optim::LBFGS> optimizer(model, torch::optim::LBFGSOptions());
  // EXPECT-ERROR: DistributedOptimizer: LBFGS calls the loss function several times in a step
  // EXPECT-ERROR: so it cannot be distributed; use SGD, Adam, AdamW, Adagrad, RMSprop
}
