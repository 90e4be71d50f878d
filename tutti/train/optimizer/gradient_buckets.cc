// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/gradient_buckets.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "tutti/base/error.h"

namespace tutti::internal {
namespace {

// How many owners a gradient's memory has while autograd's hook runs, if nothing else shares it:
// the gradient, the tensor that backward passed and, if that is a view such as a transposed
// product, its base.
size_t expected_owners(const at::Tensor& gradient, const torch::autograd::variable_list& inputs) {
  const bool dense = gradient.layout() == at::kStrided && !inputs.empty() && inputs[0].defined() &&
                     inputs[0].layout() == at::kStrided;
  if (!dense || !inputs[0].is_alias_of(gradient)) return 1;
  if (!inputs[0].is_view()) return 2;
  const at::TensorBase& base = inputs[0]._base();
  return base.use_count() == 1 && base.is_alias_of(gradient) ? 3 : 2;
}

}  // namespace

class GradientBuckets::PostHook final : public torch::autograd::FunctionPostHook {
 public:
  PostHook(GradientBuckets& buckets, size_t replica, size_t slot)
      : buckets_(buckets), replica_(replica), slot_(slot) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    buckets_.on_gradient(replica_, slot_, inputs);
    return outputs;
  }

 private:
  GradientBuckets& buckets_;
  size_t replica_;
  size_t slot_;
};

GradientBuckets::GradientBuckets(FlatParameters& flat, GradientReducer& reducer,
                                 std::function<void(size_t)> before_gradient)
    : flat_(flat),
      reducer_(reducer),
      before_gradient_(std::move(before_gradient)),
      replicas_(flat.replicas()) {
  const size_t slots = flat_.layout().slots.size();
  for (size_t r = 0; r < replicas_.size(); ++r) {
    replicas_[r].versions.resize(slots);
    replicas_[r].filled.resize(slots);
    replicas_[r].tensors.resize(
        slots, WeakTensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()));
    replicas_[r].placed.resize(slots);
    replicas_[r].open.resize(flat_.layout().buckets.size());
    clear(r);
  }
  add_hooks();
}

GradientBuckets::~GradientBuckets() { remove_hooks(); }

void GradientBuckets::add_hooks() {
  remove_hooks();
  for (size_t r = 0; r < replicas_.size(); ++r) {
    for (size_t s = 0; s < flat_.layout().slots.size(); ++s) {
      Hook& hook = replicas_[r].hooks.emplace_back();
      hook.accumulator = torch::autograd::impl::grad_accumulator(flat_.parameter(r, s));
      if (hook.accumulator == nullptr) continue;  // frozen since the layout was made
      hook.key = hook.accumulator->add_post_hook(std::make_unique<PostHook>(*this, r, s));
    }
  }
}

void GradientBuckets::remove_hooks() {
  for (Replica& replica : replicas_) {
    for (const Hook& hook : replica.hooks) {
      if (hook.accumulator != nullptr) hook.accumulator->del_post_hook(hook.key);
    }
    replica.hooks.clear();
  }
}

void GradientBuckets::clear(size_t replica) {
  Replica& me = replicas_[replica];
  for (size_t s = 0; s < flat_.layout().slots.size(); ++s) {
    at::Tensor& gradient = flat_.parameter(replica, s).mutable_grad();
    if (gradient.defined()) gradient = at::Tensor();
  }
  me.holds_sums = false;
  std::fill(me.filled.begin(), me.filled.end(), Filled::kNo);
  release_places(replica);
  begin_step(replica);
}

void GradientBuckets::release_places(size_t replica) {
  for (const ParameterBucket& bucket : flat_.layout().buckets) {
    const size_t slot = bucket.first_slot;
    if (bucket.end_slot - slot > 1) continue;
    replicas_[replica].placed[slot] = at::Tensor();
    flat_.place_gradient(replica, slot, nullptr);
  }
}

void GradientBuckets::begin_step(size_t replica) {
  Replica& me = replicas_[replica];
  me.num_filled = 0;
  me.backward_ran = false;
  for (size_t b = 0; b < me.open.size(); ++b) {
    const ParameterBucket& bucket = flat_.layout().buckets[b];
    me.open[b] = bucket.end_slot - bucket.first_slot;
  }
}

void GradientBuckets::forget(size_t replica) {
  Replica& me = replicas_[replica];
  for (Filled& filled : me.filled) {
    filled = filled == Filled::kYes || filled == Filled::kStale ? Filled::kStale : Filled::kNo;
  }
  release_places(replica);
  begin_step(replica);
}

void GradientBuckets::on_gradient(size_t replica, size_t slot,
                                  const torch::autograd::variable_list& inputs) {
  Replica& me = replicas_[replica];
  const at::Tensor& gradient = flat_.parameter(replica, slot).mutable_grad();
  if (!gradient.defined()) return;
  before_gradient_(replica);
  me.backward_ran = true;
  if (!check_new(replica, slot, gradient)) return;
  const size_t owners = expected_owners(gradient, inputs);
  if (me.synchronizing) {
    take(replica, slot, owners);
    reducer_.help(replica);
  } else {
    keep(replica, slot, owners);
  }
}

// Another model's backward may pass through here after step(); only a step() that uses what it
// added would be wrong.
bool GradientBuckets::check_new(size_t replica, size_t slot, const at::Tensor& gradient) {
  Replica& me = replicas_[replica];
  if (me.filled[slot] == Filled::kSpoilt) return false;
  if (me.filled[slot] == Filled::kYes || me.filled[slot] == Filled::kMissing) {
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("DistributedOptimizer: backward produced the gradient of '", flat_.name(slot),
                "' a second time before step(), and the first is already being summed "
                "over the replicas. Call step() and zero_grad() between, or do all but "
                "the last backward inside no_sync()."));
  }
  // Only backward has changed the tensor since then: it was not set to zero.
  if (!is_old(replica, slot, gradient, 1)) return true;
  if (me.filled[slot] == Filled::kStale) throw_old(slot, Filled::kStale);
  me.filled[slot] = Filled::kSpoilt;
  return false;
}

// Whether the gradient is the tensor of an earlier step, changed `changes` times since then.
bool GradientBuckets::is_old(size_t replica, size_t slot, const at::Tensor& gradient,
                             uint32_t changes) const {
  const Replica& me = replicas_[replica];
  if (!me.holds_sums && me.filled[slot] != Filled::kStale) return false;
  return gradient.unsafeGetTensorImpl() == me.tensors[slot]._unsafe_get_target() &&
         static_cast<uint32_t>(gradient._version()) == me.versions[slot] + changes;
}

void GradientBuckets::throw_old(size_t slot, Filled how) const {
  const char* what = "' is still that of the last step(), the sum of all replicas";
  if (how == Filled::kStale) what = "' is from a step that was not finished because run() failed";
  if (how == Filled::kSpoilt) {
    what = "' is that of the last step(), the sum of all replicas, to which backward has added";
  }
  throw Error(ErrorCode::kFailedPrecondition,
              message("DistributedOptimizer: the gradient of '", flat_.name(slot), what,
                      ". Call zero_grad() before backward, and backward before step()."));
}

void GradientBuckets::note_version(size_t replica, size_t slot) {
  const at::Tensor& gradient = flat_.parameter(replica, slot).mutable_grad();
  Replica& me = replicas_[replica];
  if (me.tensors[slot]._unsafe_get_target() != gradient.unsafeGetTensorImpl()) {
    me.tensors[slot] = WeakTensor(gradient.getIntrusivePtr());
  }
  me.versions[slot] = static_cast<uint32_t>(gradient._version());
}

void GradientBuckets::keep(size_t replica, size_t slot, size_t owners) {
  const at::Tensor& gradient = flat_.parameter(replica, slot).mutable_grad();
  if (!flat_.is_attachable(slot) || gradient.is_sparse()) return;
  if (gradient.data_ptr() == flat_.gradient_address(replica, slot)) return;
  if (!sums_in_place(replica, slot, owners)) copy_to_slot(replica, slot, gradient);
}

// Two parameters may get gradients that share memory, such as those of a.view(-1) + b.view(-1).
bool GradientBuckets::sums_in_place(size_t replica, size_t slot, size_t owners) const {
  if (!reducer_.sums_in_place() || !flat_.is_attachable(slot)) return false;
  if (!flat_.layout().is_large(flat_.layout().slots[slot].bucket)) return false;
  const at::Tensor& gradient = flat_.parameter(replica, slot).mutable_grad();
  return gradient.layout() == at::kStrided && gradient.is_contiguous() &&
         gradient.scalar_type() == flat_.gradient(replica, slot).scalar_type() &&
         !gradient.requires_grad() && gradient.storage().use_count() <= owners;
}

void GradientBuckets::copy_to_slot(size_t replica, size_t slot, const at::Tensor& gradient) {
  const at::Tensor& memory = flat_.gradient(replica, slot);
  if (gradient.layout() == at::kStrided && gradient.is_contiguous() &&
      gradient.scalar_type() == memory.scalar_type() && gradient.device().is_cpu() &&
      memory.device().is_cpu()) {
    std::memcpy(flat_.gradient_address(replica, slot), gradient.data_ptr(), memory.nbytes());
  } else {
    const c10::AutoGradMode no_grad(false);
    const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
    const at::Tensor target = memory;
    target.copy_(dense);
  }
  if (flat_.is_attachable(slot)) flat_.parameter(replica, slot).mutable_grad() = memory;
}

void GradientBuckets::take(size_t replica, size_t slot, size_t owners) {
  const at::Tensor& gradient = flat_.parameter(replica, slot).mutable_grad();
  void* place = nullptr;
  if (sums_in_place(replica, slot, owners)) {
    place = gradient.data_ptr();
    replicas_[replica].placed[slot] = gradient;  // keeps it alive until it is summed
  } else if (gradient.is_sparse() || !flat_.is_attachable(slot) ||
             gradient.data_ptr() != flat_.gradient_address(replica, slot)) {
    copy_to_slot(replica, slot, gradient);
  }
  fill(replica, slot, Filled::kYes, place);
}

void GradientBuckets::fill(size_t replica, size_t slot, Filled how, void* place) {
  Replica& me = replicas_[replica];
  me.filled[slot] = how;
  ++me.num_filled;
  if (how == Filled::kYes) note_version(replica, slot);
  flat_.place_gradient(replica, slot, place);
  const size_t bucket = flat_.layout().slots[slot].bucket;
  if (--me.open[bucket] == 0) reducer_.ready(replica, bucket, place);
}

bool GradientBuckets::complete(size_t replica, const std::vector<uint8_t>& live) {
  Replica& me = replicas_[replica];
  bool just_live = true;
  for (size_t s = 0; s < me.filled.size(); ++s) {
    if (me.filled[s] == Filled::kSpoilt) throw_old(s, Filled::kSpoilt);
    if (me.filled[s] == Filled::kNo || me.filled[s] == Filled::kStale) {
      const at::Tensor& gradient = flat_.parameter(replica, s).mutable_grad();
      if (gradient.defined()) {
        if (is_old(replica, s, gradient, 0)) throw_old(s, me.filled[s]);
        take(replica, s, 1);
      } else {
        const at::Tensor memory = flat_.gradient(replica, s);
        const c10::AutoGradMode no_grad(false);
        memory.zero_();
        fill(replica, s, Filled::kMissing, nullptr);
      }
    }
    just_live = just_live && (me.filled[s] == Filled::kYes) == (live[s] != 0);
  }
  reducer_.help(replica);
  return just_live;
}

void GradientBuckets::publish(size_t replica, const std::vector<uint8_t>& live, double factor) {
  Replica& me = replicas_[replica];
  for (size_t s = 0; s < me.filled.size(); ++s) {
    at::Tensor& gradient = flat_.parameter(replica, s).mutable_grad();
    if (live[s] != 0) {
      const at::Tensor& memory = flat_.gradient(replica, s);
      if (me.placed[s].defined()) {
        if (!gradient.is_same(me.placed[s])) gradient = me.placed[s];
      } else if (flat_.is_attachable(s)) {
        if (!gradient.is_same(memory)) gradient = memory;
      } else {
        const c10::AutoGradMode no_grad(false);
        gradient = memory.to(flat_.parameter(replica, s).scalar_type());
        if (factor != 1) gradient.mul_(factor);
      }
      note_version(replica, s);
    }
    me.filled[s] = Filled::kNo;
  }
  me.holds_sums = true;
  begin_step(replica);
}

bool GradientBuckets::take_changes(size_t replica, const std::vector<uint8_t>& live) {
  bool just_live = true;
  for (size_t s = 0; s < flat_.layout().slots.size(); ++s) {
    const at::Tensor& gradient = flat_.parameter(replica, s).mutable_grad();
    just_live = just_live && gradient.defined() == (live[s] != 0);
    if (!gradient.defined()) continue;
    const bool in_place = flat_.is_attachable(s) && !gradient.is_sparse() &&
                          gradient.data_ptr() == flat_.gradient_place(replica, s);
    if (!in_place) {
      replicas_[replica].placed[s] = at::Tensor();
      flat_.place_gradient(replica, s, nullptr);
      copy_to_slot(replica, s, gradient);
    }
    note_version(replica, s);
  }
  return just_live;
}

}  // namespace tutti::internal
