// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/error.h"
#include "tutti/train/optimizer/work_request.h"

namespace tutti {
namespace {

constexpr double kSmallestScale = 1e-30;  // its inverse is a float

}  // namespace

GradScaler::GradScaler(const Strategy& strategy, const GradScalerOptions& options)
    : strategy_(strategy),
      options_(options),
      replicas_(static_cast<size_t>(strategy.extended().num_local_replicas())) {
  const auto refuse = [](const char* field, auto value, const char* rule) {
    throw Error(ErrorCode::kInvalidArgument,
                message("GradScaler: ", field, " is ", value, "; it must be ", rule, "."));
  };
  if (!(options.growth_factor > 1)) refuse("growth_factor", options.growth_factor, "above 1");
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    refuse("backoff_factor", options.backoff_factor, "between 0 and 1");
  }
  if (options.growth_interval < 1) refuse("growth_interval", options.growth_interval, "positive");
  set_state({.scale = options.enabled ? options.init_scale : 1});
}

void GradScaler::set_state(const State& state) {
  if (!(state.scale > 0) || !std::isfinite(state.scale) || state.growth_tracker < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("GradScaler: a scale of ", state.scale, " after ", state.growth_tracker,
                        " steps is not valid; the scale must be positive and finite."));
  }
  state_ = state;
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss.mul(state_.scale) : loss;
}

GradScaler::Replica& GradScaler::enter(const char* function, CallSite site) {
  ReplicaContext* const context = get_replica_context(site);
  if (context == nullptr || !(context->strategy() == strategy_)) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("GradScaler::", function, ": the calling thread is not inside run() of ",
                        strategy_.extended().describe(), ". Call it in the step function."));
  }
  Replica& me = replicas_[static_cast<size_t>(context->local_replica_id())];
  if (const uint64_t failed = strategy_.extended().failed_runs(); me.failed_runs != failed) {
    me = {.failed_runs = failed};
  }
  return me;
}

StepControl GradScaler::control(CallSite site) {
  enter("step", site);
  return {.gradient_factor = 1 / state_.scale, .skip_non_finite = true};
}

void GradScaler::note(const StepResult& result, CallSite site) {
  Replica& me = enter("step", site);
  me.stepped = me.stepped || result.updated || result.non_finite;
  me.overflowed = me.overflowed || result.non_finite;
}

void GradScaler::update(CallSite site) {
  if (!options_.enabled) return;
  Replica& me = enter("update", site);
  const auto work = [&] {
    if (!me.stepped) return;
    if (me.overflowed) {
      state_.scale = std::max(state_.scale * options_.backoff_factor, kSmallestScale);
      state_.growth_tracker = 0;
    } else if (++state_.growth_tracker == options_.growth_interval) {
      const double grown = state_.scale * options_.growth_factor;
      if (std::isfinite(grown)) state_.scale = grown;
      state_.growth_tracker = 0;
    }
  };
  internal::WorkRequest request("GradScaler::update", site, MeetingRequest::Completer::kLast, this,
                                {.name = "overflows", .value = me.overflowed ? 1.0 : 0.0}, work);
  strategy_.extended().meet(*get_replica_context(site), request);
  me.stepped = false;
  me.overflowed = false;
}

}  // namespace tutti
