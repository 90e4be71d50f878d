// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/torch_rules.h"

#include <tuple>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace tutti {

UpdateRule rule_of(const torch::optim::SGDOptions& options) {
  return SgdRule{.lr = options.lr(),
                 .momentum = options.momentum(),
                 .dampening = options.dampening(),
                 .weight_decay = options.weight_decay(),
                 .nesterov = options.nesterov()};
}

UpdateRule rule_of(const torch::optim::AdamOptions& options) {
  return AdamRule{.lr = options.lr(),
                  .beta1 = std::get<0>(options.betas()),
                  .beta2 = std::get<1>(options.betas()),
                  .eps = options.eps(),
                  .weight_decay = options.weight_decay(),
                  .amsgrad = options.amsgrad()};
}

UpdateRule rule_of(const torch::optim::AdamWOptions& options) {
  return AdamWRule{.lr = options.lr(),
                   .beta1 = std::get<0>(options.betas()),
                   .beta2 = std::get<1>(options.betas()),
                   .eps = options.eps(),
                   .weight_decay = options.weight_decay(),
                   .amsgrad = options.amsgrad()};
}

UpdateRule rule_of(const torch::optim::AdagradOptions& options) {
  return AdagradRule{.lr = options.lr(),
                     .lr_decay = options.lr_decay(),
                     .weight_decay = options.weight_decay(),
                     .initial_accumulator_value = options.initial_accumulator_value(),
                     .eps = options.eps()};
}

UpdateRule rule_of(const torch::optim::RMSpropOptions& options) {
  return RmspropRule{.lr = options.lr(),
                     .alpha = options.alpha(),
                     .eps = options.eps(),
                     .weight_decay = options.weight_decay(),
                     .momentum = options.momentum(),
                     .centered = options.centered()};
}

}  // namespace tutti
