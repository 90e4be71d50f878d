// SPDX-License-Identifier: Apache-2.0
//
// The implementation of a Variable. A strategy makes one of four kinds:
//
//   plain          one copy, nothing to keep equal (OneDeviceStrategy, outside of a scope)
//   mirrored       a copy on every replica; writes are combined, so that copies stay equal
//   sync on read   a copy on every replica; reads from outside combine them
//   aggregating    one copy for all replicas; writes are combined and applied once

#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"
#include "tutti/base/function_ref.h"
#include "tutti/device/device_spec.h"
#include "tutti/nest/leaf.h"
#include "tutti/values/variable.h"
#include "tutti/values/variable_options.h"

namespace tutti {

class ReplicaContext;
class StrategyServices;

/// A request to create a variable.
struct VariableCreation {
  const VariableOptions& options;
  FunctionRef<at::Tensor()> initial_value;
  bool is_function;  ///< Whether only one replica calls initial_value.
  CallSite site;
};

/// A write in a replica, the value of which is combined over the replicas.
struct VariableUpdate {
  /// What makes a value the same for all replicas.
  enum class Same { kNo, kNumber, kMirrored };

  const VariableImpl& variable;
  const char* function;  ///< "assign_add"; a literal
  VariableAggregation aggregation;
  const LeafList& leaves;  ///< The value: one tensor or one IndexedSlices; it is replaced.
  Same same;
  const void* mirrored = nullptr;  ///< kMirrored: identifies the value.
  CallSite site = {};
  /// If set, called once for all replicas while they wait.
  FunctionRef<void(const Leaf& combined)> apply_once = {};
};

/// Everything that is fixed when a variable is made.
struct VariableDefinition {
  std::shared_ptr<StrategyServices> services;
  VariableOptions options;  ///< Every field is resolved.
  std::vector<DeviceSpec> devices;
  std::vector<at::Tensor> components;  ///< One for each device.
};

/// Copies the initial value to each device and resolves the options. Throws
/// kInvalidArgument for inconsistent options.
VariableDefinition define_variable(std::shared_ptr<StrategyServices> services,
                                   const VariableOptions& options, const at::Tensor& initial_value,
                                   const std::vector<DeviceSpec>& devices);

class VariableImpl {
 public:
  enum class Write { kAssign, kAdd, kSub };
  enum class Scatter { kAdd, kSub, kMul, kDiv, kMin, kMax, kUpdate };
  enum class Read { kValue, kCopy, kConvert, kAfterWrite };

  virtual ~VariableImpl() = default;
  VariableImpl(const VariableImpl&) = delete;
  VariableImpl& operator=(const VariableImpl&) = delete;

  StrategyServices& services() const { return *definition_.services; }
  const VariableOptions& options() const { return definition_.options; }
  const std::vector<DeviceSpec>& devices() const { return definition_.devices; }
  const std::vector<at::Tensor>& components() const { return definition_.components; }
  const std::string& component_name(size_t i) const { return names_[i]; }
  at::ScalarType dtype() const { return components()[0].scalar_type(); }

  /// The component of the replica or update that the thread is in, otherwise the first one.
  size_t own_component() const;

  /// The same, but outside of those the component on the current device, if there is one.
  size_t nearest_component() const;

  /// Whether there are several components, equal by contract.
  virtual bool is_mirrored() const { return false; }

  /// Whether the tensor is a component, not merely an alias of one.
  virtual bool owns(const at::Tensor& tensor) const;

  /// Throws kFailedPrecondition if the variable must not be used here.
  void check_usable(const char* function) const { place(function); }

  at::Tensor read(Read how);
  at::Tensor grad() const;
  at::Tensor write(Write op, const VariableValue& value, const AssignOptions& options,
                   CallSite site);
  at::Tensor scatter(Scatter op, const IndexedSlices& slices, const AssignOptions& options,
                     CallSite site);
  void print(std::ostream& out) const;
  std::string describe() const;  ///< "variable 'v' (float32[2, 3])"

 protected:
  /// Where the calling thread is, as seen by this variable.
  struct Place {
    enum class Kind { kReplica, kUpdate, kCross };

    Kind kind;
    size_t component;                   ///< kReplica, kUpdate
    ReplicaContext* context = nullptr;  ///< kReplica
  };

  explicit VariableImpl(VariableDefinition definition);

  /// Throws kFailedPrecondition in the scope or run of another strategy.
  virtual Place place(const char* function) const;

  /// How many components a PerReplica value must have.
  virtual size_t value_parts() const { return components().size(); }

  /// Part i of the value, or the value itself if it has no parts. Throws kInvalidArgument unless it
  /// is a number or has the variable's dtype and shape.
  at::Tensor checked_value(const char* function, const VariableValue& value, size_t i) const;

  void write_component(Write op, size_t i, const at::Tensor& value);
  void scatter_component(Scatter op, size_t i, const IndexedSlices& slices);

  /// The values of all replicas, combined by the variable's aggregation.
  at::Tensor combine(const char* function, const Place& place, const VariableValue& value,
                     CallSite site) const;
  IndexedSlices combine(Scatter op, const Place& place, const IndexedSlices& slices,
                        CallSite site) const;

  void write_all(Write op, const VariableValue& value);

  /// Throws kUnimplemented for the scatters that cannot be combined.
  void check_aggregates(Scatter op) const;

  /// The tensor that a thread at this place sees.
  virtual const at::Tensor& local_component(const Place& place) const {
    return components()[place.component];
  }
  at::Tensor local_value(const Place& place, Read how) const;

  /// A copy of the nearest component.
  at::Tensor nearest_value() const;

  static VariableUpdate::Same sameness(const VariableValue& value);
  static const void* identity(const VariableValue& value);

 private:
  virtual const char* kind() const = 0;  // "MirroredVariable"; null: prints as its component
  virtual at::Tensor do_read(const Place& place, Read how) = 0;
  virtual void do_write(Write op, const Place& place, const VariableValue& value,
                        CallSite site) = 0;
  virtual void do_scatter(Scatter op, const Place& place, const IndexedSlices& slices,
                          CallSite site) = 0;

  void check_slices(Scatter op, const IndexedSlices& slices) const;

  VariableDefinition definition_;
  std::vector<std::string> names_;
};

/// "read_value", "assign_add", "scatter_min", ...
const char* to_string(VariableImpl::Read how);
const char* to_string(VariableImpl::Write op);
const char* to_string(VariableImpl::Scatter op);

std::shared_ptr<VariableImpl> make_plain_variable(VariableDefinition definition);

std::shared_ptr<VariableImpl> make_mirrored_variable(VariableDefinition definition);
std::shared_ptr<VariableImpl> make_sync_on_read_variable(VariableDefinition definition);

/// Lives on one device; all replicas share the component, each through its own leaf tensor.
std::shared_ptr<VariableImpl> make_aggregating_variable(VariableDefinition definition,
                                                        size_t local_replicas);

}  // namespace tutti
