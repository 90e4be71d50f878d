// SPDX-License-Identifier: Apache-2.0
//
// BatchNorm with the statistics of all replicas: the result and its gradients are those of one
// device that has the whole batch, however the rows are spread over the replicas.
//
//   tutti::nn::SyncBatchNorm2d bn(64);                  // in place of torch::nn::BatchNorm2d
//   tutti::convert_sync_batch_norm(*model);             // in the containers of an existing model

#pragma once

#include <cstddef>
#include <ostream>

#include <ATen/core/Tensor.h>

#include "tutti/train/torch_names.h"

namespace tutti {
namespace nn {

/// Has the options, parameters and buffers of torch::nn::BatchNorm, so that files of one can be
/// loaded into the other.
///
/// In training, inside Strategy::run with several replicas, forward() and backward() are meeting
/// points: every replica must call them, even one without rows. The running statistics become
/// equal on all replicas. Elsewhere, and in evaluation, it is a BatchNorm. Gradients of gradients
/// (create_graph) are kUnimplemented over several replicas. Like any module, it is for one thread
/// at a time.
template <size_t D>
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<D, SyncBatchNormImpl<D>, torch::nn::BatchNormOptions> {
 public:
  using Base = torch::nn::NormImplBase<D, SyncBatchNormImpl<D>, torch::nn::BatchNormOptions>;

  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm) : Base(batch_norm) {}

  /// Throws kInvalidArgument when all replicas together have a single value for each channel.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

  /// Takes over the tensors and the mode of a layer with the same options.
  template <class Layer>
  void take_over(const Layer& layer);

 protected:
  void _check_input_dim(const at::Tensor& input) override;  // NOLINT: LibTorch's name
};

/// The module holder, as LibTorch has one for each of its modules. Threads: as the module.
template <size_t D>
class SyncBatchNorm : public torch::nn::ModuleHolder<SyncBatchNormImpl<D>> {
 public:
  using torch::nn::ModuleHolder<SyncBatchNormImpl<D>>::ModuleHolder;
  using Impl = SyncBatchNormImpl<D>;
};

using SyncBatchNorm1dImpl = SyncBatchNormImpl<1>;
using SyncBatchNorm2dImpl = SyncBatchNormImpl<2>;
using SyncBatchNorm3dImpl = SyncBatchNormImpl<3>;
using SyncBatchNorm1d = SyncBatchNorm<1>;
using SyncBatchNorm2d = SyncBatchNorm<2>;
using SyncBatchNorm3d = SyncBatchNorm<3>;

}  // namespace nn

/// Replaces every BatchNorm in `module` that lies in a Sequential, ModuleList or ModuleDict, at any
/// depth, by a SyncBatchNorm with the same tensors. Returns how many it replaced. Call it
/// before the module is replicated, in the factory or on the module to adopt.
///
/// A BatchNorm that is a member of a C++ class cannot be replaced: its type is fixed where it is
/// declared. For such layers it throws kInvalidArgument, which names them, and changes nothing;
/// declare them as tutti::nn::SyncBatchNorm instead.
int convert_sync_batch_norm(torch::nn::Module& module);

template <class Contained>
int convert_sync_batch_norm(const torch::nn::ModuleHolder<Contained>& module) {
  torch::nn::Module& each = *module.ptr();
  return convert_sync_batch_norm(each);
}

}  // namespace tutti
