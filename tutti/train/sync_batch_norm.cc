// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/sync_batch_norm.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/context_frame.h"
#include "tutti/values/replica_context.h"

namespace tutti {
namespace nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The replica that computes, kept for its backward pass. The strategy is kept alive.
struct Replica : torch::CustomClassHolder {
  explicit Replica(ReplicaContext& replica) : strategy(replica.strategy()), context(&replica) {}
  Strategy strategy;
  ReplicaContext* context;
};

at::ScalarType computing_dtype(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

// Returns all dimensions except that of the channels.
std::vector<int64_t> other_dims(const at::Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t i = 2; i < input.dim(); ++i) dims.push_back(i);
  return dims;
}

// Reshapes one number per channel so that it broadcasts over the input.
at::Tensor spread(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(computing_dtype(input)).view(shape);
}

struct Statistics {
  at::Tensor mean;
  at::Tensor squares;  // the sum of squared distances from the mean
  double count = 0;
};

// Counts, means and squares of all replicas are sent together; their combination does not cancel,
// unlike the difference of a mean of squares and a squared mean.
Statistics combine(ReplicaContext& context, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const int64_t count = channels == 0 ? 0 : input.numel() / channels;
  at::Tensor mine = at::zeros({1, 2 * channels + 1}, input.options().dtype(at::kDouble));
  if (count > 0) {
    const auto [variance, mean] =
        at::var_mean(input.to(computing_dtype(input)), other_dims(input), /*unbiased=*/false);
    mine.fill_(static_cast<double>(count));
    mine.select(0, 0).narrow(0, 0, channels).copy_(mean);
    mine.select(0, 0).narrow(0, channels, channels).copy_(variance).mul_(count);
  }
  const at::Tensor all = context.all_gather(mine, 0);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor means = all.narrow(1, 0, channels);
  Statistics result;
  result.count = counts.sum().item<double>();
  result.mean = (means * counts).sum(0) / std::max(result.count, 1.0);
  result.squares =
      (all.narrow(1, channels, channels) + counts * (means - result.mean).square()).sum(0);
  return result;
}

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& inverse_deviation,
                            double count, c10::intrusive_ptr<Replica> replica) {
    context->save_for_backward({input, weight, mean, inverse_deviation});
    context->saved_data["count"] = count;
    context->saved_data["input needs gradient"] = input.requires_grad();
    context->saved_data["replica"] = c10::IValue::make_capsule(std::move(replica));
    at::Tensor output = input - spread(mean, input);
    output.mul_(spread(weight * inverse_deviation, input)).add_(spread(bias, input));
    return output.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorCode::kUnimplemented,
                  "SyncBatchNorm: gradients of gradients (create_graph) are not computed over "
                  "several replicas. Use GroupNorm or LayerNorm there.");
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const std::vector<int64_t> dims = other_dims(input);
    const at::Tensor gradient = gradients[0].to(computing_dtype(input));
    const at::Tensor centred = input - spread(saved[2], input);
    const at::Tensor sum = gradient.sum(dims);
    const at::Tensor product = (gradient * centred).sum(dims);

    variable_list results(7);
    results[1] = (product * saved[3]).to(weight.scalar_type());
    results[2] = sum.to(weight.scalar_type());
    if (context->saved_data["input needs gradient"].toBool()) {
      at::Tensor sums = at::cat({sum, product}).to(at::kDouble);
      const auto replica =
          c10::static_intrusive_pointer_cast<Replica>(context->saved_data["replica"].toCapsule());
      const internal::BackwardScope current(replica->strategy.extended(), *replica->context,
                                            "SyncBatchNorm");
      replica->context->all_reduce_(ReduceOp::kSum, sums);
      sums.div_(std::max(context->saved_data["count"].toDouble(), 1.0));
      const int64_t channels = input.size(1);
      const at::Tensor slope =
          sums.narrow(0, channels, channels) * saved[3].to(at::kDouble).square();
      at::Tensor result = gradient - spread(sums.narrow(0, 0, channels), input);
      result.sub_(centred * spread(slope, input));
      result.mul_(spread(weight * saved[3], input));
      results[0] = result.to(input.scalar_type());
    }
    return results;
  }
};

void move_towards(at::Tensor& running, const at::Tensor& value, double factor) {
  running.mul_(1 - factor).add_(value.to(running.scalar_type()), factor);
}

template <class Layer>
at::Tensor normalize_together(ReplicaContext& context, Layer& layer, const at::Tensor& input,
                              double factor) {
  Statistics statistics;
  at::Tensor inverse_deviation;
  {
    const at::NoGradGuard no_grad;
    statistics = combine(context, input);
    // One channel decides for all: every channel has equally many values.
    if (statistics.count == 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  "SyncBatchNorm: all replicas together have one value for each channel, too few "
                  "for statistics in training. Use a larger batch or drop the short last batch "
                  "(drop_remainder).");
    }
    const double count = std::max(statistics.count, 1.0);
    inverse_deviation = (statistics.squares / count + layer.options.eps()).rsqrt();
    if (layer.running_mean.defined() && statistics.count > 0) {
      move_towards(layer.running_mean, statistics.mean, factor);
      move_towards(layer.running_var, statistics.squares / (count - 1), factor);
    }
    inverse_deviation = inverse_deviation.to(computing_dtype(input));
    statistics.mean = statistics.mean.to(computing_dtype(input));
  }
  // An autograd function does not accept undefined tensors.
  const bool affine = layer.weight.defined();
  return Normalize::apply(input, affine ? layer.weight : at::ones_like(statistics.mean),
                          affine ? layer.bias : at::zeros_like(statistics.mean), statistics.mean,
                          inverse_deviation, statistics.count,
                          c10::make_intrusive<Replica>(context));
}

}  // namespace

template <size_t D>
at::Tensor SyncBatchNormImpl<D>::forward(const at::Tensor& input) {
  _check_input_dim(input);
  double factor = this->options.momentum().value_or(0.0);
  if (this->is_training() && this->num_batches_tracked.defined()) {
    this->num_batches_tracked += 1;
    if (!this->options.momentum().has_value()) {  // the plain average over all batches
      factor = 1.0 / this->num_batches_tracked.template item<double>();
    }
  }
  const internal::ContextFrame* frame = internal::current_frame();
  ReplicaContext* context = frame == nullptr ? nullptr : frame->replica;
  if (this->is_training() && context != nullptr && context->num_replicas_in_sync() > 1) {
    return normalize_together(*context, *this, input, factor);
  }
  return torch::nn::functional::detail::batch_norm(
      input, this->running_mean, this->running_var, this->weight, this->bias,
      this->is_training() || !this->options.track_running_stats(), factor, this->options.eps());
}

template <size_t D>
void SyncBatchNormImpl<D>::_check_input_dim(const at::Tensor& input) {
  const auto rank = static_cast<size_t>(input.dim());
  const bool fits =
      (rank == D + 2 || (D == 1 && rank == 2)) && input.size(1) == this->options.num_features();
  if (fits) return;
  throw Error(ErrorCode::kInvalidArgument,
              message("SyncBatchNorm", D, "d: the input has the shape ", input.sizes(),
                      "; expected [rows, ", this->options.num_features(),
                      D == 1   ? "] or [rows, channels, length"
                      : D == 2 ? ", height, width"
                               : ", depth, height, width",
                      "]."));
}

template <size_t D>
void SyncBatchNormImpl<D>::pretty_print(std::ostream& stream) const {
  stream << "tutti::nn::SyncBatchNorm" << D << "d(" << this->options.num_features()
         << ", eps=" << this->options.eps() << ", momentum=";
  if (this->options.momentum().has_value()) {
    stream << *this->options.momentum();
  } else {
    stream << "None";
  }
  stream << std::boolalpha << ", affine=" << this->options.affine()
         << ", track_running_stats=" << this->options.track_running_stats() << ")";
}

template <size_t D>
template <class Layer>
void SyncBatchNormImpl<D>::take_over(const Layer& layer) {
  const at::NoGradGuard no_grad;
  this->weight = this->parameters_["weight"] = layer.weight;
  this->bias = this->parameters_["bias"] = layer.bias;
  if (layer.options.track_running_stats()) {
    this->running_mean.set_data(layer.running_mean);
    this->running_var.set_data(layer.running_var);
    this->num_batches_tracked.set_data(layer.num_batches_tracked);
  }
  this->train(layer.is_training());
}

template class SyncBatchNormImpl<1>;
template class SyncBatchNormImpl<2>;
template class SyncBatchNormImpl<3>;

}  // namespace nn

// ---- the converter ---------------------------------------------------------

namespace {

using torch::nn::Module;
using ModulePtr = std::shared_ptr<Module>;

template <class Visit>
bool visit_kinds(const Visit& visit) {
  using namespace torch::nn;  // NOLINT(google-build-using-namespace): the list below
  return visit(std::type_identity<BatchNorm1dImpl>(),
               std::type_identity<nn::SyncBatchNorm1dImpl>()) ||
         visit(std::type_identity<BatchNorm2dImpl>(),
               std::type_identity<nn::SyncBatchNorm2dImpl>()) ||
         visit(std::type_identity<BatchNorm3dImpl>(),
               std::type_identity<nn::SyncBatchNorm3dImpl>());
}

bool is_batch_norm(const Module& module) {
  return visit_kinds([&]<class Old, class New>(std::type_identity<Old>, std::type_identity<New>) {
    return dynamic_cast<const Old*>(&module) != nullptr;
  });
}

// A class derived from BatchNorm adds its own behaviour, which would be lost.
bool is_exactly_batch_norm(const Module& module) {
  return visit_kinds([&]<class Old, class New>(std::type_identity<Old>, std::type_identity<New>) {
    return typeid(module) == typeid(Old);
  });
}

bool is_container(const Module& module) {
  return dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}

void list_refused(const std::string& path, const Module& module, bool in_container,
                  std::vector<std::string>& list) {
  if (is_batch_norm(module)) {
    if (in_container && is_exactly_batch_norm(module)) return;
    list.push_back(message("'", path, "' (", c10::demangle(typeid(module).name()), ")"));
    return;
  }
  for (const auto& child : module.named_children()) {
    list_refused(path.empty() ? child.key() : path + "." + child.key(), *child.value(),
                 is_container(module), list);
  }
}

// Replaces layers in containers; a layer that is in two of them stays one layer.
class Converter {
 public:
  int convert(Module& module) {
    int count = 0;
    for (const auto& child : module.named_children()) {
      if (!is_batch_norm(*child.value())) {
        count += convert(*child.value());
      } else {
        replace(module, child.key(), child.value());
        ++count;
      }
    }
    return count;
  }

 private:
  void replace(Module& container, const std::string& name, const ModulePtr& layer) {
    visit_kinds([&]<class Old, class New>(std::type_identity<Old>, std::type_identity<New>) {
      const auto* const old = dynamic_cast<const Old*>(layer.get());
      if (old == nullptr) return false;
      ModulePtr& known = replaced_[layer.get()];
      if (known == nullptr) {
        auto made = std::make_shared<New>(old->options);
        made->take_over(*old);
        known = std::move(made);
        kept_.push_back(layer);
      }
      const auto sync = std::dynamic_pointer_cast<New>(known);
      container.replace_module(name, sync);
      replace_in_container(container, layer, sync);
      return true;
    });
  }

  // Containers keep their own list besides the registered children.
  template <class New>
  static void replace_in_container(Module& container, const ModulePtr& layer,
                                   const std::shared_ptr<New>& sync) {
    if (auto* const sequential = container.as<torch::nn::SequentialImpl>()) {
      for (torch::nn::AnyModule& each : *sequential) {
        if (each.ptr() == layer) each = torch::nn::AnyModule(sync);
      }
    } else if (auto* const list = container.as<torch::nn::ModuleListImpl>()) {
      for (ModulePtr& each : *list) {
        if (each == layer) each = sync;
      }
    } else if (auto* const dict = container.as<torch::nn::ModuleDictImpl>()) {
      for (auto& each : *dict) {
        if (each.value() == layer) each.value() = sync;
      }
    }
  }

  std::map<const Module*, ModulePtr> replaced_;
  std::vector<ModulePtr> kept_;  // so that no address is used twice
};

}  // namespace

int convert_sync_batch_norm(torch::nn::Module& module) {
  std::vector<std::string> refused;
  list_refused("", module, /*in_container=*/false, refused);
  if (!refused.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                message("convert_sync_batch_norm: only layers in a Sequential, ModuleList or "
                        "ModuleDict can be replaced; members of a C++ class have the type they are "
                        "declared with: ",
                        joined(refused),
                        ". Declare them as tutti::nn::SyncBatchNorm1d, 2d or 3d, which have the "
                        "same options and names. Nothing was changed."));
  }
  return Converter().convert(module);
}

}  // namespace tutti
