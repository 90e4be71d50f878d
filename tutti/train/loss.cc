// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/loss.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "tutti/base/error.h"
#include "tutti/nest/print.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/internal/autograd_node.h"
#include "tutti/train/internal/weights.h"
#include "tutti/values/context_frame.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message(function, ": ", reason));
}

ReplicaContext& replica(const char* function, CallSite site = internal::last_context_site()) {
  ReplicaContext* const context = get_replica_context(site);
  if (context != nullptr) return *context;
  throw Error(ErrorCode::kFailedPrecondition,
              message(function,
                      ": called in cross-replica context, but a loss belongs to a replica. Call it "
                      "inside the function given to Strategy::run."));
}

void check_loss(const char* function, const at::Tensor& loss) {
  if (!loss.defined() || loss.layout() != at::kStrided || !loss.is_floating_point()) {
    refuse(function, message("the loss is ", describe(loss),
                             ", but it must be a dense floating-point tensor."));
  }
}

// A mean over this replica's rows would be averaged a second time, with the wrong weight.
void check_not_reduced(const char* function, const at::Tensor& per_example, bool scalar_weight,
                       int replicas) {
  if (per_example.dim() > 0 || scalar_weight || replicas == 1) return;
  refuse(function,
         message("the loss has no dimensions, so it looks like a mean taken on one of ", replicas,
                 " replicas. Pass one loss for each example (reduction torch::kNone), or a weight "
                 "without dimensions along with it."));
}

at::Tensor in_full_precision(at::Tensor loss) {
  const at::ScalarType type = loss.scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) return loss.to(at::kFloat);
  return loss;
}

// Returns the sum in float64; refuses values that cannot be weights.
double sum_of_weights(const char* function, const ReplicaContext& context,
                      const at::Tensor& weights) {
  if (weights.numel() == 0) return 0;
  const at::Tensor values = weights.detach().to(at::kDouble);
  const auto sum = values.sum().item<double>();
  const auto least = values.min().item<double>();
  if (std::isfinite(sum) && least >= 0) return sum;
  refuse(function, message("replica ", context.replica_id_in_sync_group(),
                           std::isfinite(sum) ? message(" has the negative weight ", least)
                                              : message(" has weights whose sum is ", sum),
                           "; weights must be finite and not negative."));
}

double add_weights(const char* function, ReplicaContext& context, double mine, CallSite site) {
  const double total = context.all_reduce(ReduceOp::kSum, mine, {}, site);
  if (!std::isfinite(total)) {
    refuse(function,
           message("the weights of all replicas together are ", total, "; they must be finite."));
  }
  return total;
}

at::Tensor weighted_sum(const at::Tensor& loss, const std::optional<at::Tensor>& weights) {
  return weights ? at::mul(loss, weights->to(loss.options())).sum() : loss.sum();
}

// The gradient of an average over one CPU tensor: the same number for each element. If nothing else
// can see the losses, this node replaces the one that made them, and runs it itself.
class AverageBackward final : public torch::autograd::Node {
 public:
  AverageBackward(const at::Tensor& per_example, double total, internal::NodeHandle inner,
                  uint32_t input)
      : Node(inner != nullptr ? inner->next_edges()
                              : torch::autograd::collect_next_edges(per_example)),
        sizes_(per_example.sizes().vec()),
        options_(per_example.options()),
        total_(total),
        inner_(std::move(inner)),
        input_(input) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const bool runs_inner = inner_ != nullptr;
    const at::Tensor& gradient = gradients[0];
    torch::autograd::variable_list found(runs_inner ? inner_->num_inputs() : 1);
    if (gradient.defined() && (runs_inner || should_compute_output(0))) {
      found[input_] = c10::GradMode::is_enabled()
                          ? at::div(gradient, total_).expand(sizes_)
                          : at::full(sizes_, gradient.item<double>() / total_, options_);
    }
    return runs_inner ? (*inner_)(std::move(found)) : found;
  }

  // Gradients of gradients may also use the inner node, which made the values that it saved.
  void release_variables() override {
    if (inner_ != nullptr && inner_.use_count() == 1) inner_->release_variables();
  }
  void will_release_variables() override {
    if (inner_ != nullptr && inner_.use_count() == 1) inner_->will_release_variables();
  }

  std::string name() const override {
    return inner_ == nullptr ? "AverageLossBackward" : "AverageLossBackward of " + inner_->name();
  }

 private:
  std::vector<int64_t> sizes_;
  at::TensorOptions options_;
  double total_;
  internal::NodeHandle inner_;
  uint32_t input_;
};

// Returns the node that made the losses if only this tensor refers to it, and only the caller to
// the tensor: then nothing can ask for the gradient of the losses or add a hook to them.
internal::NodeHandle take_node(const at::Tensor& loss) {
  if (loss.use_count() != 1 || loss.is_leaf() || loss.is_view()) return {};
  const internal::NodeHandle& node = loss.grad_fn();
  const bool has_hooks = !node->pre_hooks().empty() || !node->post_hooks().empty() ||
                         internal::has_tensor_hooks(*node);
  return node.use_count() == 1 && !has_hooks ? node : internal::NodeHandle();
}

constexpr int64_t kFewElements = 4096;

bool is_few_on_host(const at::Tensor& loss) {
  return loss.device().is_cpu() && loss.is_contiguous() && loss.numel() <= kFewElements &&
         (loss.scalar_type() == at::kFloat || loss.scalar_type() == at::kDouble);
}

template <class T>
double sum_of(const at::Tensor& loss) {
  const T* const data = loss.data_ptr<T>();
  return std::accumulate(data, data + loss.numel(), 0.0);
}

// Consumes the losses.
at::Tensor average_of_few(at::Tensor loss, double total) {
  const double sum = loss.scalar_type() == at::kFloat ? sum_of<float>(loss) : sum_of<double>(loss);
  at::Tensor average;
  {
    const c10::AutoGradMode no_grad(false);
    average = at::full({}, sum / total, loss.options().requires_grad(false));
  }
  if (c10::GradMode::is_enabled() && loss.requires_grad()) {
    internal::NodeHandle inner = take_node(loss);
    const auto input = static_cast<uint32_t>(inner != nullptr ? loss.output_nr() : 0);
    torch::autograd::create_gradient_edge(
        average, internal::make_node<AverageBackward>(loss, total, std::move(inner), input));
  }
  return average;
}

// With a total weight of 0 the loss is 0, even if an example's is not finite, and stays in the
// graph. Autograd spends microseconds on every node, whatever the node does, so in small models a
// single node costs a fraction of what a sum and a division cost.
at::Tensor divided(at::Tensor per_example, const std::optional<at::Tensor>& weights, double total) {
  at::Tensor loss = in_full_precision(std::move(per_example));
  if (total == 0) return loss.reshape({-1}).slice(0, 0, 0).sum();
  if (!weights && is_few_on_host(loss)) return average_of_few(std::move(loss), total);
  return at::div(weighted_sum(loss, weights), total);
}

}  // namespace

at::Tensor average_loss(at::Tensor per_example, const std::optional<at::Tensor>& weights,
                        CallSite site) {
  constexpr const char* kFunction = "average_loss";
  ReplicaContext& context = replica(kFunction, site);
  internal::check_per_example(kFunction, per_example, weights, context.num_replicas_in_sync());
  std::optional<at::Tensor> fitting;
  auto mine = static_cast<double>(per_example.numel());
  if (weights) {
    fitting = internal::broadcast_weights(kFunction, *weights, "the loss", per_example);
    mine = sum_of_weights(kFunction, context, *fitting);
  }
  return divided(std::move(per_example), fitting, add_weights(kFunction, context, mine, site));
}

at::Tensor average_loss_over(at::Tensor per_example, double total_weight,
                             const std::optional<at::Tensor>& weights) {
  constexpr const char* kFunction = "average_loss_over";
  const ReplicaContext& context = replica(kFunction);
  check_loss(kFunction, per_example);
  if (!std::isfinite(total_weight) || total_weight < 0) {
    refuse(kFunction, message("the total weight is ", total_weight,
                              "; it must be finite and not negative. global_weight() adds the "
                              "weights of all replicas."));
  }
  std::optional<at::Tensor> fitting;
  if (weights) {
    fitting = internal::broadcast_weights(kFunction, *weights, "the loss", per_example);
    sum_of_weights(kFunction, context, *fitting);
  }
  return divided(std::move(per_example), fitting, total_weight);
}

double global_weight(const at::Tensor& weights, CallSite site) {
  constexpr const char* kFunction = "global_weight";
  ReplicaContext& context = replica(kFunction, site);
  return add_weights(
      kFunction, context,
      sum_of_weights(kFunction, context,
                     internal::broadcast_weights(kFunction, weights, "themselves", weights)),
      site);
}

double global_weight(double weight, CallSite site) {
  constexpr const char* kFunction = "global_weight";
  ReplicaContext& context = replica(kFunction, site);
  if (!std::isfinite(weight) || weight < 0) {
    refuse(kFunction, message("replica ", context.replica_id_in_sync_group(), " has the weight ",
                              weight, "; weights must be finite and not negative."));
  }
  return add_weights(kFunction, context, weight, site);
}

at::Tensor scale_regularization_loss(const at::Tensor& loss) {
  constexpr const char* kFunction = "scale_regularization_loss";
  const ReplicaContext& context = replica(kFunction);
  check_loss(kFunction, loss);
  return divided(loss, std::nullopt, context.num_replicas_in_sync());
}

at::Tensor compute_average_loss(const at::Tensor& per_example,
                                const std::optional<at::Tensor>& sample_weight,
                                std::optional<int64_t> global_batch_size) {
  constexpr const char* kFunction = "compute_average_loss";
  const ReplicaContext& context = replica(kFunction);
  check_loss(kFunction, per_example);
  if (!global_batch_size) {
    if (per_example.dim() == 0) {
      refuse(kFunction,
             "the loss has no dimensions, so it has no rows to count. Pass one loss for each "
             "example (reduction torch::kNone), or the global batch size.");
    }
    global_batch_size = per_example.size(0) * context.num_replicas_in_sync();
  }
  if (*global_batch_size < 0) {
    refuse(kFunction,
           message("the global batch size is ", *global_batch_size, "; it must be 0 or more."));
  }
  std::optional<at::Tensor> fitting = sample_weight;
  if (fitting && fitting->defined() && fitting->dim() > 0 &&
      fitting->dim() + 1 == per_example.dim()) {
    fitting = fitting->unsqueeze(-1);
  }
  if (fitting) fitting = internal::broadcast_weights(kFunction, *fitting, "the loss", per_example);
  return divided(per_example, fitting, static_cast<double>(*global_batch_size));
}

namespace internal {

void check_per_example(const char* who, const at::Tensor& per_example,
                       const std::optional<at::Tensor>& weights, int replicas) {
  check_loss(who, per_example);
  const bool scalar_weight = weights && weights->defined() && weights->dim() == 0;
  check_not_reduced(who, per_example, scalar_weight, replicas);
}

}  // namespace internal

}  // namespace tutti
