// SPDX-License-Identifier: Apache-2.0
//
// The memory of an optimizer's parameters and gradients: flat buffers of every local replica,
// which the tensors of the modules alias.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/collectives/gradient_reducer.h"
#include "tutti/device/arena.h"
#include "tutti/train/optimizer/parameter_layout.h"
#include "tutti/train/replicated_modules.h"

namespace tutti::internal {

/// Not thread-safe, except that replica r may read what belongs to r at any time.
class FlatParameters {
 public:
  /// Lays out the parameters and moves their values into flat memory.
  FlatParameters(std::shared_ptr<ReplicatedModules> modules, ParameterLayout layout);

  const ParameterLayout& layout() const { return layout_; }
  const ReplicatedModules& modules() const { return *modules_; }
  size_t replicas() const { return modules_->size(); }

  /// Whether all replicas' parameters are the same memory.
  bool is_shared() const { return shared_; }

  at::Tensor& parameter(size_t replica, size_t slot) const {
    return modules_->parameter(replica, layout_.slots[slot].info.parameter);
  }
  const std::string& name(size_t slot) const {
    return modules_->parameter_names()[layout_.slots[slot].info.parameter];
  }

  /// The flat memory of a buffer.
  const at::Tensor& values(size_t replica, size_t buffer) const { return values_[replica][buffer]; }
  const at::Tensor& gradients(size_t replica, size_t buffer) const {
    return gradients_[replica][buffer];
  }

  /// The slot of a gradient, in the shape of its parameter and the dtype that is reduced.
  const at::Tensor& gradient(size_t replica, size_t slot) const {
    return gradient_slots_[replica][slot];
  }
  void* gradient_address(size_t replica, size_t slot) const {
    return gradient_addresses_[replica][slot];
  }

  /// Where the gradient of a slot lies in this step: in the slot, or where it was placed.
  void* gradient_place(size_t replica, size_t slot) const {
    void* const place = gradient_places_[replica][slot];
    return place != nullptr ? place : gradient_addresses_[replica][slot];
  }
  void place_gradient(size_t replica, size_t slot, void* place) {
    gradient_places_[replica][slot] = place;
  }

  /// Whether the slot of a gradient can be the gradient of its parameter.
  bool is_attachable(size_t slot) const {
    const ParameterBuffer& buffer = layout_.buffers[layout_.slots[slot].buffer];
    return buffer.gradient == buffer.dtype;
  }

  /// The buckets, for a reducer.
  std::vector<GradientBucket> buckets() const;

  /// Whether the parameters of a replica are still where they were put; LibTorch moves them when
  /// they are loaded or converted.
  bool is_attached(size_t replica) const;

  /// Takes over the values of parameters that were moved, and moves the parameters back.
  void attach();

  /// Whether all parameters still have the dtypes of the layout.
  bool has_layout_dtypes() const;

 private:
  void allocate();

  std::shared_ptr<ReplicatedModules> modules_;
  ParameterLayout layout_;
  bool shared_;
  HeapArena arena_;
  std::vector<std::vector<at::Tensor>> values_;
  std::vector<std::vector<at::Tensor>> gradients_;
  std::vector<std::vector<at::Tensor>> value_slots_;
  std::vector<std::vector<void*>> value_addresses_;
  std::vector<std::vector<at::Tensor>> gradient_slots_;
  std::vector<std::vector<void*>> gradient_addresses_;
  std::vector<std::vector<void*>> gradient_places_;  // null: in the slot
};

}  // namespace tutti::internal
