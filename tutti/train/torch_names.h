// SPDX-License-Identifier: Apache-2.0
//
// Names of LibTorch's modules and optimizers, whose headers take five times as long to read as the
// rest of tutti.h. A program that uses them includes torch/torch.h.

#pragma once

#include <cstddef>

namespace torch {

namespace nn {
class Module;
template <typename Contained>
class ModuleHolder;
struct BatchNormOptions;
template <size_t D, typename Derived, typename DerivedOptions>
class NormImplBase;
}  // namespace nn

namespace optim {
class Adagrad;
class Adam;
class AdamW;
class LBFGS;
class RMSprop;
class SGD;
struct AdagradOptions;
struct AdamOptions;
struct AdamWOptions;
struct RMSpropOptions;
struct SGDOptions;
}  // namespace optim

}  // namespace torch
