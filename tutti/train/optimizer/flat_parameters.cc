// SPDX-License-Identifier: Apache-2.0

#include "tutti/train/optimizer/flat_parameters.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "tutti/device/device_scope.h"

namespace tutti::internal {
namespace {

// This is not an autograd view, so that LibTorch may detach it, zero it in place, and so on.
at::Tensor alias(const at::Tensor& flat, int64_t offset, at::IntArrayRef sizes) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return flat.narrow(0, offset, c10::multiply_integers(sizes)).view(sizes);
}

}  // namespace

FlatParameters::FlatParameters(std::shared_ptr<ReplicatedModules> modules, ParameterLayout layout)
    : modules_(std::move(modules)),
      layout_(std::move(layout)),
      shared_(modules_->strategy().extended().shares_parameters()) {
  allocate();
  attach();
}

void FlatParameters::allocate() {
  const c10::AutoGradMode no_grad(false);
  StrategyExtended& extended = modules_->strategy().extended();
  for (size_t r = 0; r < replicas(); ++r) {
    values_.emplace_back();
    gradients_.emplace_back();
    for (size_t b = 0; b < layout_.buffers.size(); ++b) {
      const ParameterBuffer& buffer = layout_.buffers[b];
      const at::Device device = torch_device(extended.worker_devices()[r]);
      if (!device.is_cpu()) {
        values_[r].push_back(at::zeros({buffer.numel}, at::device(device).dtype(buffer.dtype)));
        gradients_[r].push_back(
            at::zeros({buffer.numel}, at::device(device).dtype(buffer.gradient)));
        continue;
      }
      values_[r].push_back(shared_ && r > 0 ? values_[0][b]
                                            : arena_.empty({buffer.numel}, buffer.dtype));
      gradients_[r].push_back(extended.arena().empty({buffer.numel}, buffer.gradient));
      values_[r][b].zero_();
    }
    // Slots of large parameters are skipped: they are rarely touched.
    for (size_t b = 0; b < layout_.buckets.size(); ++b) {
      const ParameterBucket& bucket = layout_.buckets[b];
      if (layout_.is_large(b)) continue;
      gradients_[r][bucket.buffer].narrow(0, bucket.begin, bucket.end - bucket.begin).zero_();
    }
    value_slots_.emplace_back();
    value_addresses_.emplace_back();
    gradient_slots_.emplace_back();
    gradient_addresses_.emplace_back();
    gradient_places_.emplace_back(layout_.slots.size());
    for (size_t s = 0; s < layout_.slots.size(); ++s) {
      const ParameterSlot& slot = layout_.slots[s];
      const at::IntArrayRef sizes = parameter(r, s).sizes();
      value_slots_[r].push_back(alias(values_[r][slot.buffer], slot.offset, sizes));
      value_addresses_[r].push_back(value_slots_[r][s].data_ptr());
      gradient_slots_[r].push_back(alias(gradients_[r][slot.buffer], slot.offset, sizes));
      gradient_addresses_[r].push_back(gradient_slots_[r][s].data_ptr());
    }
  }
}

bool FlatParameters::is_attached(size_t replica) const {
  for (size_t s = 0; s < layout_.slots.size(); ++s) {
    if (parameter(replica, s).data_ptr() != value_addresses_[replica][s]) return false;
  }
  return true;
}

bool FlatParameters::has_layout_dtypes() const {
  for (size_t r = 0; r < replicas(); ++r) {
    for (const ParameterSlot& slot : layout_.slots) {
      if (modules_->parameter(r, slot.info.parameter).scalar_type() != slot.info.dtype) {
        return false;
      }
    }
  }
  return true;
}

void FlatParameters::attach() {
  const c10::AutoGradMode no_grad(false);
  for (size_t s = 0; s < layout_.slots.size(); ++s) {
    for (size_t r = 0; r < replicas(); ++r) {
      at::Tensor& leaf = parameter(r, s);
      if (leaf.data_ptr() == value_addresses_[r][s]) continue;
      // With shared parameters the first replica's value counts.
      if (!shared_ || r == 0) value_slots_[r][s].copy_(leaf);
      leaf.set_data(value_slots_[r][s]);
    }
  }
}

std::vector<GradientBucket> FlatParameters::buckets() const {
  std::vector<GradientBucket> buckets;
  for (const ParameterBucket& range : layout_.buckets) {
    GradientBucket& bucket = buckets.emplace_back();
    bucket.name = name(range.first_slot);
    // The gradient of a large parameter may lie elsewhere, without padding.
    const bool single = range.end_slot - range.first_slot == 1;
    const int64_t numel =
        single ? layout_.slots[range.first_slot].info.numel : range.end - range.begin;
    for (size_t r = 0; r < replicas(); ++r) {
      bucket.memory.push_back(alias(gradients_[r][range.buffer], range.begin, {numel}));
    }
  }
  return buckets;
}

}  // namespace tutti::internal
