// SPDX-License-Identifier: Apache-2.0
//
// Variables whose value is in tensors of this process, one for each device: the components.
//
//   plain          one copy, nothing to keep equal (OneDeviceStrategy, outside of a scope)
//   mirrored       a copy on every replica; writes are combined, so that copies stay equal
//   sync on read   a copy on every replica; reads from outside combine them
//   aggregating    one copy for all replicas; writes are combined and applied once

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/nest/indexed_slices.h"
#include "tutti/values/variable.h"
#include "tutti/values/variable_impl.h"

namespace tutti {

/// The base of these kinds: allocates the components, and reads and writes single ones. Threads: as
/// VariableImpl.
class ComponentVariable : public VariableImpl {
 public:
  /// Copies the initial value to each device.
  ComponentVariable(VariableDefinition definition, const at::Tensor& initial_value,
                    std::optional<size_t> value_parts = std::nullopt);

  void print(std::ostream& out) const final;

 protected:
  const std::vector<at::Tensor>& components() const { return components_; }

  void write_component(Write op, size_t i, const at::Tensor& value);
  void write_all(Write op, const VariableValue& value);
  void scatter_component(Scatter op, size_t i, const IndexedSlices& slices);

  /// The tensor that a thread at this place sees.
  virtual const at::Tensor& local_component(const Place& place) const {
    return components_[place.component];
  }
  at::Tensor local_value(const Place& place, Read how) const;

  /// A copy of the nearest component.
  at::Tensor nearest_value() const;

 private:
  virtual const char* kind() const = 0;  // "MirroredVariable"; null: prints as its component
  at::Tensor do_grad(const Place& place) const final;
  const std::vector<at::Tensor>* local_components() const final { return &components_; }

  std::vector<at::Tensor> components_;
};

std::shared_ptr<VariableImpl> make_plain_variable(VariableDefinition definition,
                                                  const at::Tensor& initial_value);
std::shared_ptr<VariableImpl> make_mirrored_variable(VariableDefinition definition,
                                                     const at::Tensor& initial_value);
std::shared_ptr<VariableImpl> make_sync_on_read_variable(VariableDefinition definition,
                                                         const at::Tensor& initial_value);

/// Lives on one device; all replicas share the component, each through its own leaf tensor.
std::shared_ptr<VariableImpl> make_aggregating_variable(VariableDefinition definition,
                                                        const at::Tensor& initial_value,
                                                        size_t local_replicas);

}  // namespace tutti
