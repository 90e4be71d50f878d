// SPDX-License-Identifier: Apache-2.0
//
// An optimizer of torch::optim, or your own, for a replicated module. In the step function of a
// strategy:
//
//   auto loss = tutti::average_loss(cross_entropy(model->forward(x), y));
//   optimizer.zero_grad();
//   loss.backward();     // with several workers, gradients are summed while this runs
//   optimizer.step();    // sums what is left; all replicas' parameters change in the same way
//
// Gradients are summed, not averaged; average_loss() scales the loss to match. See
// docs/guide/training-loop.md.

#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tutti/base/call_site.h"
#include "tutti/train/optimizer/optimizer_arguments.h"
#include "tutti/train/optimizer/optimizer_core.h"
#include "tutti/train/optimizer/optimizer_options.h"
#include "tutti/train/optimizer/torch_rules.h"
#include "tutti/train/replicated.h"
#include "tutti/train/torch_names.h"

namespace tutti {

/// Parameters, by name, that have their own options. A plain value.
template <class Options>
struct ParameterGroup {
  std::vector<std::string> parameters;
  Options options;
};

/// O is an optimizer of torch::optim or your own class derived from torch::optim::Optimizer that
/// can be constructed from (parameters or groups, options). SGD, Adam, AdamW, Adagrad and RMSprop
/// run as fused loops over all parameters, spread over the replicas; any other O updates the
/// parameters of the first replica by its own step(), and they are then copied to the others. State
/// exists once per process.
///
/// One object serves all replicas. Inside run() every replica calls the same functions in the same
/// order; step(), and zero_grad() after a backward without step(), are meeting points. Each replica
/// calls from its own thread; between runs one thread at a time may use it.
template <class O>
class DistributedOptimizer {
  static_assert(!std::is_same_v<O, torch::optim::LBFGS>,
                "DistributedOptimizer: LBFGS calls the loss function several times in a step, on "
                "one replica's data only, so it cannot be distributed; use SGD, Adam, AdamW, "
                "Adagrad, RMSprop or an optimizer of your own that makes one update per step");
  static_assert(std::derived_from<O, torch::optim::Optimizer>,
                "DistributedOptimizer: the class must be derived from torch::optim::Optimizer");

 public:
  /// The options of O if the library knows it, so that `0.1` or `{0.1}` is enough.
  using Known = typename internal::known_options<O>::type;

  /// Updates all parameters of the model that require a gradient, with the same options. Do not
  /// call it inside run().
  template <class M>
  DistributedOptimizer(const Replicated<M>& model, const Known& options,
                       const DistributedOptimizerOptions& distributed = {})
      : DistributedOptimizer(
            model.modules(),
            std::vector<ParameterGroup<Known>>{{model.modules()->parameter_names(), options}},
            options, distributed) {}
  template <class M, class Options>
    requires(!std::convertible_to<Options, Known>)
  DistributedOptimizer(const Replicated<M>& model, const Options& options,
                       const DistributedOptimizerOptions& distributed = {})
      : DistributedOptimizer(
            model.modules(),
            std::vector<ParameterGroup<Options>>{{model.modules()->parameter_names(), options}},
            options, distributed) {}

  /// Updates groups of parameters; those in no group are not changed. Throws kNotFound for an
  /// unknown name and kInvalidArgument for one that is listed twice.
  template <class M, class Options>
  DistributedOptimizer(const Replicated<M>& model,
                       const std::vector<ParameterGroup<Options>>& groups,
                       const DistributedOptimizerOptions& distributed = {})
      : DistributedOptimizer(model.modules(), groups,
                             groups.empty() ? throw_no_groups<Options>() : groups.front().options,
                             distributed) {}
  template <class M>
  DistributedOptimizer(const Replicated<M>& model,
                       std::initializer_list<ParameterGroup<Known>> groups,
                       const DistributedOptimizerOptions& distributed = {})
      : DistributedOptimizer(model, std::vector<ParameterGroup<Known>>(groups), distributed) {}

  /// Drops the gradients of the calling replica, so that backward starts from zero.
  void zero_grad(CallSite site = CallSite::current()) { core_->zero_grad(site); }

  /// Updates all parameters by the sum of all replicas' gradients. Returns false if it
  /// did not: while it accumulates, or because a gradient was not finite. Afterwards gradients hold
  /// the sums.
  StepResult step(CallSite site = CallSite::current()) { return core_->step({}, site); }
  StepResult step(const StepControl& control, CallSite site = CallSite::current()) {
    return core_->step(control, site);
  }

  /// Calls zero_grad(), backward() of the loss and step().
  StepResult minimize(const at::Tensor& loss, CallSite site = CallSite::current()) {
    zero_grad(site);
    loss.backward();
    return step(site);
  }

  /// Sums the gradients before step(), so that they can be read or changed; a change must be the
  /// same on all replicas.
  void synchronize(CallSite site = CallSite::current()) { core_->synchronize(site); }

  /// While the result lives, backward only adds to the gradients of the calling replica. Use it
  /// for all but the last backward before a step().
  [[nodiscard]] std::shared_ptr<void> no_sync(CallSite site = CallSite::current()) {
    return core_->no_sync(site);
  }

  /// tutti::average_loss() for steps of several backward passes: the average over all examples
  /// since the last step(), whatever the sizes of the batches. Call it once for each backward, and
  /// do not mix it with tutti::average_loss() in one step.
  at::Tensor average_loss(at::Tensor per_example, const std::optional<at::Tensor>& weights = {},
                          CallSite site = CallSite::current()) {
    return core_->average_loss(std::move(per_example), weights, site);
  }

  /// The optimizer of the first replica: its groups hold the options that count, so a scheduler of
  /// torch::optim works on it. Change options between runs only. Fused optimizers keep their state
  /// elsewhere, so saving this one saves only options; groups cannot be added later.
  O& torch_optimizer() { return *optimizer_; }
  operator torch::optim::Optimizer&() {
    return *optimizer_;
  }  // NOLINT(google-explicit-constructor)
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  /// The bytes that this process holds for all its replicas: parameters (with float32 copies of
  /// 16-bit ones), and fused optimizer state.
  size_t parameter_bytes() const { return core_->parameter_bytes(); }
  size_t state_bytes() const { return core_->state_bytes(); }

  /// Copies of what a fused optimizer keeps for a parameter, in its shape and in the order in which
  /// update_rules/ names them: exp_avg, exp_avg_sq for Adam. There are none before its first
  /// update, and none for an optimizer that is not fused: torch_optimizer() has them. Throws
  /// kNotFound for an unknown name. Do not call it inside run().
  std::vector<at::Tensor> states_of(const std::string& parameter) const {
    return core_->states_of(parameter);
  }

 private:
  template <class Options>
  DistributedOptimizer(const std::shared_ptr<ReplicatedModules>& modules,
                       const std::vector<ParameterGroup<Options>>& groups, const Options& defaults,
                       const DistributedOptimizerOptions& distributed) {
    std::vector<std::vector<size_t>> numbers;
    std::vector<torch::optim::OptimizerParamGroup> torch_groups;
    for (const ParameterGroup<Options>& group : groups) {
      std::vector<at::Tensor> tensors;
      numbers.emplace_back();
      for (const std::string& name : group.parameters) {
        numbers.back().push_back(modules->parameter_index(name));
        const at::Tensor& parameter = modules->parameter(0, numbers.back().back());
        if (parameter.requires_grad()) tensors.push_back(parameter);
      }
      torch_groups.emplace_back(std::move(tensors), std::make_unique<Options>(group.options));
    }
    internal::check_parameters(*modules, numbers);
    optimizer_ = make_optimizer(std::move(torch_groups), defaults);
    OptimizerCore::Update update;
    update.step = [optimizer = optimizer_.get()] { optimizer->step(); };
    using Fused = typename internal::fused_options<O>::type;
    if constexpr (!std::is_void_v<Fused>) {
      update.rules = [optimizer = optimizer_.get()](std::vector<UpdateRule>& rules) {
        rules.clear();
        for (const auto& group : optimizer->param_groups()) {
          rules.push_back(rule_of(static_cast<const Fused&>(group.options())));
        }
      };
    }
    core_ = std::make_shared<OptimizerCore>(modules, numbers, distributed, std::move(update));
  }

  template <class Options>
  static std::unique_ptr<O> make_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                           const Options& defaults) {
    constexpr bool takes_groups =
        std::constructible_from<O, std::vector<torch::optim::OptimizerParamGroup>, Options>;
    constexpr bool takes_parameters = std::constructible_from<O, std::vector<at::Tensor>, Options>;
    static_assert(takes_groups || takes_parameters,
                  "DistributedOptimizer: the optimizer cannot be made from (vector of "
                  "OptimizerParamGroup or of Tensor, options)");
    if constexpr (takes_groups) {
      return std::make_unique<O>(std::move(groups), defaults);
    } else if constexpr (takes_parameters) {
      if (groups.size() != 1) internal::throw_no_group_support(groups.size());
      return std::make_unique<O>(groups.front().params(), defaults);
    }
  }

  template <class Options>
  static const Options& throw_no_groups() {
    internal::throw_empty_groups();
  }

  std::unique_ptr<O> optimizer_;
  std::shared_ptr<OptimizerCore> core_;
};

}  // namespace tutti
