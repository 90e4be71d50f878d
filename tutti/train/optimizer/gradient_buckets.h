// SPDX-License-Identifier: Apache-2.0
//
// Connects autograd's hooks to the buckets of a reducer: records which gradients backward has
// produced, copies them into their slots, and tells the reducer when a bucket is full.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include "tutti/collectives/gradient_reducer.h"
#include "tutti/train/internal/autograd_node.h"
#include "tutti/train/optimizer/flat_parameters.h"

namespace tutti::internal {

/// Replica r passes its local id, from the thread that runs it or the one that runs its backward. A
/// hook knows its replica and does not read a thread-local.
class GradientBuckets {
 public:
  /// Both arguments must outlive it. `before_gradient` is called first in each hook.
  GradientBuckets(FlatParameters& flat, GradientReducer& reducer,
                  std::function<void(size_t replica)> before_gradient);
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// While false, backward only adds to the gradients of this replica.
  void set_synchronizing(size_t replica, bool on) { replicas_[replica].synchronizing = on; }

  /// Whether the reducer has a gradient of this step.
  bool has_begun(size_t replica) const { return replicas_[replica].num_filled > 0; }

  /// Drops the gradients of this replica and begins a step. The reducer must have none of them.
  void clear(size_t replica);

  /// Call it after the reducer was reset because a run failed. Gradients that it had must be set to
  /// zero, by clear() or by the program; otherwise the next backward is an error.
  void forget(size_t replica);

  /// Whether backward has run since the last call, or since the step began.
  bool take_backward_ran(size_t replica) {
    return std::exchange(replicas_[replica].backward_ran, false);
  }

  /// After backward: takes gradients that no hook has seen, counts missing ones as zero, and helps
  /// the reducer. Returns whether this replica has gradients of exactly the slots in `live`.
  bool complete(size_t replica, const std::vector<uint8_t>& live);

  /// After the reducer has finished: makes the gradients of this replica's parameters, at least of
  /// those in `live`, the sums, times `factor` where the slot is not the gradient itself. Ends the
  /// step.
  void publish(size_t replica, const std::vector<uint8_t>& live, double factor);

  /// After the update: returns gradients that were summed in place to the program.
  void release_places(size_t replica);

  /// After publish(), before the update: takes over gradients that the program has replaced, or
  /// changed where they are copies of their slots. Returns whether this replica has gradients of
  /// exactly the slots in `live`.
  bool take_changes(size_t replica, const std::vector<uint8_t>& live);

  bool has_gradient(size_t replica, size_t slot) const {
    return flat_.parameter(replica, slot).grad().defined();
  }

  /// Whether the replica has produced this gradient in this step, before publish().
  bool was_filled(size_t replica, size_t slot) const {
    return replicas_[replica].filled[slot] == Filled::kYes;
  }

  /// Hooks vanish when LibTorch replaces the node they are attached to.
  void add_hooks();
  void remove_hooks();

 private:
  // kStale: given to the reducer in a run that failed. kSpoilt: backward added to a sum.
  enum class Filled : uint8_t { kNo, kYes, kMissing, kStale, kSpoilt };

  // No other tensor can have its address as long as this exists.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  struct Hook {
    NodeHandle accumulator;  // a parameter holds it weakly
    uintptr_t key = 0;
  };

  struct alignas(64) Replica {
    std::vector<Filled> filled;       // of each slot
    std::vector<uint32_t> versions;   // of the gradient when it was taken, or became the sum
    std::vector<WeakTensor> tensors;  // which tensor that was
    std::vector<at::Tensor> placed;   // gradients that are summed in place
    std::vector<size_t> open;         // slots still missing, of each bucket
    std::vector<Hook> hooks;
    size_t num_filled = 0;
    bool synchronizing = true;
    bool holds_sums = false;
    bool backward_ran = false;
  };

  class PostHook;

  void on_gradient(size_t replica, size_t slot, const torch::autograd::variable_list& inputs);
  bool check_new(size_t replica, size_t slot, const at::Tensor& gradient);
  bool is_old(size_t replica, size_t slot, const at::Tensor& gradient, uint32_t changes) const;
  [[noreturn]] void throw_old(size_t slot, Filled how) const;
  void take(size_t replica, size_t slot, size_t owners);
  void copy_to_slot(size_t replica, size_t slot, const at::Tensor& gradient);
  void fill(size_t replica, size_t slot, Filled how, void* place);
  bool sums_in_place(size_t replica, size_t slot, size_t owners) const;
  void keep(size_t replica, size_t slot, size_t owners);
  void begin_step(size_t replica);
  void note_version(size_t replica, size_t slot);

  FlatParameters& flat_;
  GradientReducer& reducer_;
  std::function<void(size_t)> before_gradient_;
  std::vector<Replica> replicas_;
};

}  // namespace tutti::internal
