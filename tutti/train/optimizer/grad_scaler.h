// SPDX-License-Identifier: Apache-2.0
//
// Loss scaling for float16: small gradients are scaled up before backward and down before the
// update; when one overflows on any replica, all skip the step and lower the scale. In the step
// function:
//
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);
//   scaler.update();

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"
#include "tutti/strategy/strategy.h"
#include "tutti/train/optimizer/optimizer_options.h"

namespace tutti {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< Steps without an overflow after which the scale grows.
  bool enabled = true;             ///< False: the scale is 1 and nothing is checked.
};

/// One object serves all replicas: there is one scale, which changes for all at the same step.
/// Inside run() every replica calls the same functions; update() is a meeting point. Each replica
/// calls from its own thread; between runs one thread at a time may use it.
class GradScaler {
 public:
  /// The state that a checkpoint must hold. A plain value.
  struct State {
    double scale = 1;
    int64_t growth_tracker = 0;  ///< Steps since the last overflow or change.

    bool operator==(const State&) const = default;
  };

  /// Throws kInvalidArgument for factors that do not grow or shrink.
  explicit GradScaler(const Strategy& strategy, const GradScalerOptions& options = {});

  /// The loss times the scale.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Calls optimizer.step() with unscaled gradients; skipped on all replicas if one is not finite.
  template <class Optimizer>
  StepResult step(Optimizer& optimizer, CallSite site = CallSite::current()) {
    if (!options_.enabled) return optimizer.step(site);
    const StepResult result = optimizer.step(control(site), site);
    note(result, site);
    return result;
  }

  /// Call it after step() of all optimizers: lowers the scale if one overflowed, and raises it
  /// after growth_interval steps without an overflow.
  void update(CallSite site = CallSite::current());

  double scale() const { return state_.scale; }
  const State& state() const { return state_; }

  /// Call it between runs.
  void set_state(const State& state);

 private:
  struct alignas(64) Replica {
    uint64_t failed_runs = 0;
    bool stepped = false;
    bool overflowed = false;
  };

  StepControl control(CallSite site);
  void note(const StepResult& result, CallSite site);
  Replica& enter(const char* function, CallSite site);

  Strategy strategy_;
  GradScalerOptions options_;
  State state_;
  std::vector<Replica> replicas_;
};

}  // namespace tutti
