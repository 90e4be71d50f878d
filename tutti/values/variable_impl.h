// SPDX-License-Identifier: Apache-2.0
//
// What stands behind a Variable. VariableImpl knows the type, shape and options of a variable and
// checks how it is used; each kind of variable decides what reading and writing mean. Kinds that
// keep their value in tensors of this process are in component_variable.h.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  std::vector<int64_t> shape;
  std::vector<DeviceSpec> devices;  ///< One for each copy.
};

/// Takes the shape of the initial value and resolves the options. Throws kInvalidArgument for
/// inconsistent options and for a value that is not a dense tensor.
VariableDefinition define_variable(std::shared_ptr<StrategyServices> services,
                                   const VariableOptions& options, const at::Tensor& initial_value,
                                   const std::vector<DeviceSpec>& devices);

/// A kind of variable overrides do_read, do_write and do_scatter, which are called after the
/// checks; the other functions have defaults for a variable whose value is not in this process. Not
/// thread-safe, except that each replica may use its own copy.
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
  at::ScalarType dtype() const { return *definition_.options.dtype; }
  at::IntArrayRef shape() const { return definition_.shape; }
  const std::vector<DeviceSpec>& devices() const { return definition_.devices; }
  const std::string& component_name(size_t i) const { return names_[i]; }

  /// The component of the replica or update that the thread is in, otherwise the first one.
  size_t own_component() const;

  /// The same, but outside of those the component on the current device, if there is one.
  size_t nearest_component() const;

  /// The tensors that hold the copies, one for each device. Throws kUnimplemented if the value is
  /// not in this process.
  const std::vector<at::Tensor>& components() const;
  bool has_components() const { return local_components() != nullptr; }

  /// Whether there are several components, equal by contract.
  virtual bool is_mirrored() const { return false; }

  /// Whether the tensor is a component, not merely an alias of one.
  virtual bool owns(const at::Tensor& tensor) const;

  /// Throws kFailedPrecondition if the variable must not be used here.
  void check_usable(const char* function) const { place(function); }

  at::Tensor read(Read how) const;
  at::Tensor grad() const;
  at::Tensor write(Write op, const VariableValue& value, const AssignOptions& options,
                   CallSite site);
  at::Tensor scatter(Scatter op, const IndexedSlices& slices, const AssignOptions& options,
                     CallSite site);
  virtual void print(std::ostream& out) const;
  std::string describe() const;  ///< "variable 'v' (float32[2, 3])"

 protected:
  /// Where the calling thread is, as seen by this variable.
  struct Place {
    enum class Kind { kReplica, kUpdate, kCross };

    Kind kind;
    size_t component;                   ///< kReplica, kUpdate
    ReplicaContext* context = nullptr;  ///< kReplica
  };

  /// `value_parts` is for value_parts(), if it is not the number of devices.
  explicit VariableImpl(VariableDefinition definition,
                        std::optional<size_t> value_parts = std::nullopt);

  /// How many components a PerReplica value must have.
  size_t value_parts() const { return value_parts_; }

  /// Part i of the value, or the value itself if it has no parts. Throws kInvalidArgument unless it
  /// is a number or has the variable's dtype and shape.
  at::Tensor checked_value(const char* function, const VariableValue& value, size_t i) const;

  /// The values of all replicas, combined by the variable's aggregation.
  at::Tensor combine(const char* function, const Place& place, const VariableValue& value,
                     CallSite site) const;
  IndexedSlices combine(Scatter op, const Place& place, const IndexedSlices& slices,
                        CallSite site) const;

  /// The same, for a variable that is written once: calls `apply` with the combined value on one
  /// thread while the replicas wait. Throws kInvalidArgument if the aggregation is kNone.
  void combine_once(Write op, const Place& place, const VariableValue& value, CallSite site,
                    FunctionRef<void(const at::Tensor& combined)> apply) const;
  void combine_once(Scatter op, const Place& place, const IndexedSlices& slices, CallSite site,
                    FunctionRef<void(const IndexedSlices& combined)> apply) const;

  /// Throws kUnimplemented for the scatters that cannot be combined.
  void check_aggregates(Scatter op) const;

  /// Prints one copy: <tf.Variable 'v:0' shape=() dtype=float32, numpy=1.0>
  void print_component(std::ostream& out, size_t i, const at::Tensor& value) const;

 private:
  /// All reads come here. The result of Read::kAfterWrite is what a write returns.
  virtual at::Tensor do_read(const Place& place, Read how) const = 0;
  virtual void do_write(Write op, const Place& place, const VariableValue& value,
                        CallSite site) = 0;

  /// The slices share no memory with components, and their rows exist.
  virtual void do_scatter(Scatter op, const Place& place, const IndexedSlices& slices,
                          CallSite site) = 0;
  virtual at::Tensor do_grad(const Place& place) const;

  /// The tensors of components(), or null.
  virtual const std::vector<at::Tensor>* local_components() const { return nullptr; }

  /// Throws kFailedPrecondition in the scope or run of another strategy.
  Place place(const char* function) const;

  void check_has_aggregation(const char* function) const;
  void check_slices(Scatter op, const IndexedSlices& slices) const;

  VariableDefinition definition_;
  size_t value_parts_;
  std::vector<std::string> names_;
};

/// "read_value", "assign_add", "scatter_min", ...
const char* to_string(VariableImpl::Read how);
const char* to_string(VariableImpl::Write op);
const char* to_string(VariableImpl::Scatter op);

}  // namespace tutti
