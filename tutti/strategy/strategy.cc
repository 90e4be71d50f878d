// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/strategy.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "tutti/base/error.h"
#include "tutti/cluster/resolvers/simple.h"
#include "tutti/strategy/default_strategy.h"
#include "tutti/strategy/internal/context_checks.h"
#include "tutti/values/variable_impl.h"

namespace tutti {
namespace {

// The strategy set without a scope, and its frame, which is below all scopes of the thread.
struct SetStrategy {
  std::shared_ptr<StrategyExtended> strategy;
  std::optional<internal::FrameScope> frame;
};

bool is_default(const StrategyExtended& extended) {
  return &extended == default_strategy_extended().get();
}

}  // namespace

Strategy::Strategy(std::shared_ptr<StrategyExtended> extended) : extended_(std::move(extended)) {
  if (extended_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "Strategy: the StrategyExtended is null.");
  }
}

void Strategy::join_cluster(const char* caller, const ClusterSpec& cluster_spec,
                            const std::string& task_type, int task_id) {
  std::string reason;
  if (!extended_->traits().make_worker) {
    reason = extended_->traits().why_one_process;
  } else if (extended_->has_variables()) {
    reason = "it already has variables";
  } else if (extended_.use_count() > 1) {
    reason = "other handles of it exist";
  }
  if (!reason.empty()) {
    throw Error(ErrorCode::kFailedPrecondition,
                message(caller, ": ", extended_->describe(),
                        " cannot become a strategy of several workers: ", reason,
                        ". Call configure() right after making it, or make a "
                        "MultiWorkerMirroredStrategy."));
  }
  const auto resolver = std::make_shared<SimpleClusterResolver>(cluster_spec);
  resolver->set_task_type(task_type);
  resolver->set_task_id(task_id);
  const CompatTraits compat = extended_->traits().compat;
  extended_ = extended_->traits().make_worker(resolver);
  extended_->set_compat(compat);
}

Scope Strategy::scope() const { return Scope(*this); }

Scope::Scope(Strategy strategy) : strategy_(std::move(strategy)) {
  StrategyExtended& extended = strategy_.extended();
  internal::check_cross_replica(extended, "scope", "merge_call()");
  // The default strategy is current wherever no other one is.
  if (!is_default(extended)) frame_.emplace(&extended, nullptr);
}

Strategy get_strategy() {
  StrategyExtended* current = internal::current_strategy();
  if (current == nullptr) return Strategy(default_strategy_extended());
  return Strategy(current->shared_from_this());
}

bool has_strategy() {
  const StrategyExtended* current = internal::current_strategy();
  return current != nullptr && !is_default(*current);
}

bool in_cross_replica_context() {
  const internal::ContextFrame* frame = internal::current_frame();
  return frame != nullptr && frame->replica == nullptr;
}

ReplicaContext* get_replica_context(CallSite site) {
  internal::set_last_context_site(site);
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame != nullptr) return frame->replica;
  return &default_strategy_extended()->replica_context(0);
}

void set_strategy(std::optional<Strategy> strategy) {
  thread_local SetStrategy
      set;  // only keeps them until the thread ends; the frame is in its context
  const internal::ContextFrame* frame = internal::current_frame();
  const bool inside = set.frame ? frame->previous != nullptr : frame != nullptr;
  if (inside) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("set_strategy: must not be called inside the scope or run of ",
                        internal::current_strategy()->describe(), ". Leave it first."));
  }
  set.frame.reset();
  set.strategy.reset();
  if (!strategy || is_default(strategy->extended())) return;
  set.strategy = strategy->extended().shared_from_this();
  set.frame.emplace(set.strategy.get(), nullptr);
}

std::optional<int> get_update_replica_id() {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr || frame->updated_component < 0) return std::nullopt;
  return frame->updated_component;
}

namespace internal {

StrategyServices& current_services() {
  StrategyExtended* current = current_strategy();
  return current != nullptr ? *current : *default_strategy_extended();
}

}  // namespace internal

Strategy Variable::strategy() const {
  return Strategy(static_cast<StrategyExtended&>(impl_->services()).shared_from_this());
}

Variable Variable::clone() const {
  StrategyExtended& extended = static_cast<StrategyExtended&>(impl_->services());
  internal::check_cross_replica(extended, "clone of a Variable", "merge_call()");
  const Strategy strategy(extended.shared_from_this());
  return strategy.scope([&] {
    const internal::ColocationScope colocation = extended.colocate_vars_with(*this);
    if (!impl_->has_components()) return Variable(read_value().detach(), impl_->options());
    Variable copy(components()[0].detach(), impl_->options());
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < components().size(); ++i) {
      at::Tensor target = copy.components()[i];
      target.copy_(components()[i]);
    }
    return copy;
  });
}

Strategy ReplicaContext::strategy() const {
  return Strategy(static_cast<StrategyExtended*>(services_)->shared_from_this());
}

}  // namespace tutti
