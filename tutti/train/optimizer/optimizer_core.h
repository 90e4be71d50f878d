// SPDX-License-Identifier: Apache-2.0
//
// What every DistributedOptimizer does, without the C++ type of the optimizer: gradients of all
// replicas are summed, all replicas decide together whether and how to update, and the update is
// made once and is visible to all. distributed_optimizer.h has the class that programs use.
//
// Who owns which state of a gradient, of each replica and each parameter:
//
//   the tensor                LibTorch, as .grad(); the program may change it between steps
//   its memory                FlatParameters: a slot, or where backward has put it (if large)
//   which tensor it was, and  GradientBuckets::Replica: from the hook that takes it, or the end of
//   whether it is complete    a step, to publish() or clear()
//   the bucket it is in       GradientReducer: from ready() until finish() has summed it
//   whether it counts         OptimizerCore::live_: whether any replica of any worker has one
//   updates that left it out  FlatState::Share, for rules that count updates
//
// OptimizerCore::Replica has what concerns a step as a whole: whether it holds sums already,
// backward passes so far, the weights of their losses.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/call_site.h"
#include "tutti/base/mutex.h"
#include "tutti/group/step_note.h"
#include "tutti/train/optimizer/optimizer_options.h"
#include "tutti/train/replicated_modules.h"
#include "tutti/update_rules/update_rule.h"

namespace tutti {
namespace internal {

class DriftCheck;
struct OptimizerMemory;
}  // namespace internal

/// Unless stated otherwise, every replica calls these functions in the step function, on its own
/// thread; step(), synchronize() and zero_grad() may be meeting points.
class OptimizerCore : public std::enable_shared_from_this<OptimizerCore> {
 public:
  /// How reduced gradients change the parameters.
  struct Update {
    /// Writes the current rules of all groups; empty: use `step`. All replicas call it
    /// concurrently.
    std::function<void(std::vector<UpdateRule>& rules)> rules;

    /// Updates the parameters of the first replica by their gradients.
    std::function<void()> step;
  };

  /// `groups` are indices of parameters (ReplicatedModules::parameter_names). Parameters in no
  /// group, and frozen ones, are left alone. Do not call it inside a replica.
  OptimizerCore(std::shared_ptr<ReplicatedModules> modules,
                const std::vector<std::vector<size_t>>& groups,
                const DistributedOptimizerOptions& options, Update update);
  ~OptimizerCore();
  OptimizerCore(const OptimizerCore&) = delete;
  OptimizerCore& operator=(const OptimizerCore&) = delete;

  void zero_grad(CallSite site);

  /// Sums the gradients now, so that they can be read or changed before step().
  void synchronize(CallSite site);

  StepResult step(const StepControl& control, CallSite site);

  /// While the result lives, backward adds to the gradients of the calling replica only.
  [[nodiscard]] std::shared_ptr<void> no_sync(CallSite site);

  /// Returns average_loss() over all batches up to the next step().
  at::Tensor average_loss(at::Tensor per_example, const std::optional<at::Tensor>& weights,
                          CallSite site);

  const ReplicatedModules& modules() const { return *modules_; }
  const DistributedOptimizerOptions& options() const { return options_; }

  /// Bytes of parameters (with float32 copies of 16-bit ones) and of optimizer state that this
  /// process holds for all its replicas. Do not call it while a step is in progress.
  size_t parameter_bytes() const;
  size_t state_bytes() const;

  /// Copies of what the fused update keeps for a parameter. Do not call it while a step is in
  /// progress.
  std::vector<at::Tensor> states_of(const std::string& parameter) const;

 private:
  struct alignas(64) Replica {
    int64_t updates = 0;
    int64_t steps = 0;  // also those that were skipped
    int micro_steps = 0;
    int no_sync = 0;
    uint64_t failed_runs = 0;
    bool is_synchronized = false;
    bool is_measured = false;     // square_sums_ and finite_ are those of this step
    double reference_weight = 0;  // of the loss, see average_loss()
    double total_weight = 0;
    double used_weight = 0;  // of losses whose backward has run
    uint64_t conversions = 0;
    std::vector<UpdateRule> rules;
  };

  // What all replicas decided about a step.
  struct Decision {
    bool apply = true;
    bool overflow = false;
    double factor = 1;
    double norm = 0;
    std::string non_finite;  // parameters
  };

  size_t enter(const char* function, CallSite site);
  void meet(const char* function, bool all, size_t replica, CallSite site, FunctionRef<void()> work,
            const char* argument = nullptr, double value = 0,
            std::span<const UpdateRule> rules = {});
  std::vector<UpdateRule> current_rules() const;
  void lay_out();
  void lay_out_again();
  void forget_failed_run(size_t replica);
  void drop_sums();
  void update_synchronizing(size_t replica);
  void end_window(size_t replica);

  bool needs_norm(const StepControl& control) const;
  bool is_simple(const StepControl& control, const Replica& me) const;
  void attach_converted(const char* function, size_t replica, CallSite site);
  void note_backward(size_t replica);
  void publish_scaled(size_t replica);
  bool reduce(size_t replica, bool with_update, bool with_norm);
  void measure(const GradientChunk& chunk);
  void settle(const StepControl& control);
  void collect_sparse(const char* function, size_t replica, CallSite site);
  void state(bool is_step, double gradient_factor);
  void set_flags(size_t replica);
  bool flags_bring_news() const;
  void note_news();
  void note_changed_gradients();
  void decide(const StepControl& control);
  void update_share(size_t replica);

  std::shared_ptr<ReplicatedModules> modules_;
  std::vector<std::optional<size_t>> group_of_;
  DistributedOptimizerOptions options_;
  Update update_;
  StrategyExtended& extended_;
  StepNote note_;
  std::unique_ptr<internal::DriftCheck> drift_;
  bool fused_;  // memory_->state makes the updates

  std::vector<std::string> named_missing_;
  std::unique_ptr<internal::OptimizerMemory> memory_;

  std::vector<Replica> replicas_;
  std::vector<uint8_t> live_;        // slots that any replica of any worker has a gradient of
  std::vector<double> square_sums_;  // of each chunk
  std::vector<uint8_t> finite_;
  Decision decision_;
  std::atomic<bool> news_{true};  // something settle() must look at
  std::atomic<size_t> next_chunk_{0};
  Mutex mutex_;
  uint64_t failed_runs_ TUTTI_GUARDED_BY(mutex_) = 0;
  uint64_t conversions_ = 0;  // of the modules, as of the current layout
};

}  // namespace tutti
