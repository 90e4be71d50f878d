// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/internal/tied_weights.h"

#include <map>
#include <string>
#include <utility>

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tutti/base/error.h"

namespace tutti::internal {
namespace {

using torch::nn::Module;
using Names = std::map<const c10::TensorImpl*, std::string>;

struct ModuleAccess : Module {
  // Named through this class, since the member is protected.
  static torch::OrderedDict<std::string, at::Tensor>& parameters(Module& module) {
    return module.*&ModuleAccess::parameters_;
  }
};

template <class Impl>
at::Tensor* member_of(Module& module, const std::string& name) {
  auto* const layer = dynamic_cast<Impl*>(&module);
  if (layer == nullptr) return nullptr;
  if (name == "weight") return &layer->weight;
  if constexpr (requires { layer->bias; }) {
    if (name == "bias") return &layer->bias;
  }
  return nullptr;
}

template <class... Impls>
at::Tensor* member_of_any(Module& module, const std::string& name) {
  at::Tensor* member = nullptr;
  ((member = member != nullptr ? member : member_of<Impls>(module, name)), ...);
  return member;
}

// Returns the C++ member behind a registered parameter, for layers that share weights in practice.
at::Tensor* find_member(Module& module, const std::string& name) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): the list below
  return member_of_any<LinearImpl, BilinearImpl, EmbeddingImpl, EmbeddingBagImpl, Conv1dImpl,
                       Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                       ConvTranspose3dImpl>(module, name);
}

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error(
      ErrorCode::kInvalidArgument,
      message("adopt: '", name, "' ", why,
              ", which LibTorch's clone() does not copy. Give adopt() a factory as the third "
              "argument, which makes the module as the first one was made."));
}

Names first_names(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  Names names;
  for (const auto& each : tensors) names.emplace(each.value().unsafeGetTensorImpl(), each.key());
  return names;
}

void tie_layer(const std::string& path, Module& original, Module& clone, const Names& names,
               const torch::OrderedDict<std::string, at::Tensor>& cloned) {
  for (const auto& each : original.named_parameters(/*recurse=*/false)) {
    const std::string full = join(path, each.key());
    const auto target = [&](const at::Tensor& tensor) {
      const auto found = names.find(tensor.unsafeGetTensorImpl());
      if (found == names.end()) refuse(full, "is not the tensor that the layer uses");
      return cloned[found->second];
    };
    const at::Tensor* used = find_member(original, each.key());
    at::Tensor* const member = find_member(clone, each.key());
    at::Tensor& registered = ModuleAccess::parameters(clone)[each.key()];
    const at::Tensor tied = target(each.value());
    if (!registered.is_same(tied)) {
      if (member == nullptr) {
        refuse(full, "is tied to '" + names.at(each.value().unsafeGetTensorImpl()) + "'");
      }
      registered = tied;
    }
    // Layers may also be tied behind the back of the registry: decoder->weight = encoder->weight.
    if (member != nullptr) *member = target(*used);
  }
}

}  // namespace

void tie_as(const Module& original, Module& clone) {
  const auto cloned = clone.named_parameters();
  const Names names = first_names(original.named_parameters());
  const auto modules = original.named_modules();
  const auto clones = clone.named_modules();
  for (const auto& each : modules) {
    const auto* const same = clones.find(each.key());
    if (same == nullptr) refuse(each.key(), "is missing in the clone");
    tie_layer(each.key(), *each.value(), **same, names, cloned);
  }
}

}  // namespace tutti::internal
