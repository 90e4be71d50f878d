// SPDX-License-Identifier: Apache-2.0
//
// Detects replicas, and workers, whose parameters or settings drift apart.
//
// Replicas: parameters that the optimizer updates are compared when they are updated, while they
// are in a cache; those that it does not update are compared by a hash, a part of them in each
// step.
//
// Workers: what determines an update exists once in each. It is stated in the note of the step,
// with a hash of a part of the parameters: all of them in `check_every` steps.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/group/step_note.h"
#include "tutti/train/optimizer/flat_parameters.h"
#include "tutti/train/optimizer/optimizer_options.h"
#include "tutti/update_rules/update_rule.h"

namespace tutti::internal {

/// Replica r passes its local id, from its own thread, and `steps`: how many steps it has made.
class DriftCheck {
 public:
  /// What is not an option of the optimizer, but must be equal on all workers too.
  struct Settings {
    bool is_step = true;  ///< Whether step() or synchronize() sums the gradients.
    double gradient_factor = 1;
  };

  DriftCheck(const ReplicatedModules& modules, const DistributedOptimizerOptions& options);

  /// Checks the parameters in flat memory, which must live until the next call, and those in
  /// `unmanaged`, which the optimizer does not update or which lie elsewhere.
  void watch(const FlatParameters& flat, std::vector<size_t> unmanaged);

  /// Whether parameters are compared.
  bool is_on() const { return options_.check_every > 0; }

  // ---- replicas

  /// Hashes the replica's part of the unmanaged parameters. Call it before a meeting, and
  /// check_hashes() after it.
  void hash_share(size_t replica, int64_t steps);
  void check_hashes(size_t replica, int64_t steps) const;

  /// Notes a difference between parameters in flat memory: the code of a Difference, or -1. Any
  /// thread.
  void note(int64_t code);

  /// Notes the first difference between the replica's parameters and those of replica 0. Call it
  /// in a meeting.
  void compare_copies(size_t replica);

  /// Throws kDataLoss if a difference was noted. Call it after the meeting.
  void check_copies(int64_t steps) const;

  /// Forgets what was noted in a run that has failed.
  void forget() { different_.store(-1, std::memory_order_relaxed); }

  // ---- workers

  /// Writes the statement of this worker. Called by one replica.
  void state(const Settings& settings, std::vector<UpdateRule> rules, int64_t steps,
             std::vector<double>& statement);

  /// After the exchange: throws kDataLoss if the parameters of two workers differ, and
  /// kFailedPrecondition if their settings do.
  void check_workers(const StepNote& note, int64_t steps) const;

 private:
  struct alignas(64) Replica {
    // Values of this step and of the last, which a slower replica may still compare.
    std::array<std::vector<uint64_t>, 2> hashes;
  };

  [[noreturn]] static void throw_difference(const std::string& name, size_t replica, int64_t steps);
  double hash_of_part(int64_t steps, std::vector<std::string>* names) const;

  const ReplicatedModules& modules_;
  const DistributedOptimizerOptions& options_;
  const FlatParameters* flat_ = nullptr;
  std::vector<size_t> unmanaged_;
  std::vector<Replica> replicas_;
  std::vector<UpdateRule> stated_rules_;
  std::atomic<int64_t> different_{-1};  // the code of a Difference
};

}  // namespace tutti::internal
