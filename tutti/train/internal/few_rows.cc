// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/internal/few_rows.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/nn/functional/instancenorm.h>  // modules/instancenorm.h lacks it
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/loss.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pixelshuffle.h>
#include <torch/version.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti::internal {
namespace {

using torch::nn::Module;

template <class... Impls>
bool is_any(const Module& module) {
  return ((dynamic_cast<const Impls*>(&module) != nullptr) || ...);
}

bool refuses_one_row(const Module& module) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): the list below
  return is_any<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl>(module);
}

bool refuses_no_rows(const Module& module) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): the list below
  constexpr bool kIsOld = TORCH_VERSION_MAJOR < 2;
  if (kIsOld ? is_any<EmbeddingBagImpl>(module) : is_any<CTCLossImpl>(module)) return true;
  return is_any<InstanceNorm1dImpl, InstanceNorm2dImpl, InstanceNorm3dImpl, LocalResponseNormImpl,
                MultiheadAttentionImpl, PixelShuffleImpl, PixelUnshuffleImpl>(module);
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string list_layers(const Module& module, bool (*refuses)(const Module&)) {
  std::vector<std::string> list;
  module.apply([&](const std::string& path, const Module& layer) {
    if (!refuses(layer)) return;
    list.push_back(message("'", path, "' (", c10::demangle(typeid(layer).name()), ")"));
  });
  return joined(list);
}

}  // namespace

std::string explain_few_rows(const Module& module, int replica, const std::string& error) {
  // LibTorch's wording; if a version changes it, only the explanation is lost.
  if (contains_any(error, {"Expected more than 1 value per channel"})) {
    const std::string layers = list_layers(module, refuses_one_row);
    if (layers.empty()) return {};
    return message("Replica ", replica, " had a single row, too few for the statistics of ", layers,
                   ". Drop the short last batch (drop_remainder), use a larger batch, take the "
                   "statistics over all replicas (tutti::nn::SyncBatchNorm, "
                   "convert_sync_batch_norm()), or use GroupNorm.");
  }
  if (contains_any(
          error, {"tensor of 0 elements", "tensor of size [0]", "got [0,", "must not be empty"})) {
    const std::string layers = list_layers(module, refuses_no_rows);
    if (layers.empty()) return {};
    return message("Replica ", replica,
                   " may have had no rows, which these layers refuse: ", layers,
                   ". Drop the short last batch (drop_remainder), use a batch with at least one "
                   "row for each replica, or leave the layer out when there is no row.");
  }
  return {};
}

}  // namespace tutti::internal
