// SPDX-License-Identifier: Apache-2.0
//
// Variables: state that a strategy keeps on its devices. A variable belongs to the strategy in
// whose scope it is made; what reading and writing mean depends on where they happen
// (docs/guide/variables.md has the table). variable_impl.h is for authors of strategies.

#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"
#include "tutti/base/function_ref.h"
#include "tutti/device/device_spec.h"
#include "tutti/device/thread_context.h"
#include "tutti/nest/indexed_slices.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/variable_options.h"

namespace tutti {

class ReplicaContext;
class Strategy;
class Variable;
class VariableImpl;

namespace internal {

template <class T>
concept Number = std::is_arithmetic_v<T>;

/// A number converted without loss: to float64, int64 or bool.
at::Tensor number_tensor(double value);
at::Tensor number_tensor(int64_t value);
at::Tensor number_tensor(bool value);

template <Number T>
at::Tensor number_tensor_of(T value) {
  if constexpr (std::same_as<T, bool>) {
    return number_tensor(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return number_tensor(static_cast<double>(value));
  } else {
    return number_tensor(static_cast<int64_t>(value));
  }
}

/// A number in the type of a variable made from it: the requested one, otherwise that of
/// torch::tensor, with floats in LibTorch's default type.
at::Tensor initial_number(const at::Tensor& number, std::optional<at::ScalarType> dtype);

}  // namespace internal

/// What can be assigned: a tensor, a number, a value per replica or a variable. A plain value.
class VariableValue {
 public:
  enum class Kind { kTensor, kNumber, kPerReplica, kMirrored };

  VariableValue(const at::Tensor& tensor) : kind_(Kind::kTensor), components_{tensor} {}
  template <internal::Number T>
  VariableValue(T number) : kind_(Kind::kNumber), components_{internal::number_tensor_of(number)} {}
  VariableValue(const PerReplica<at::Tensor>& value)
      : kind_(Kind::kPerReplica), components_(value.begin(), value.end()) {}
  VariableValue(const Mirrored<at::Tensor>& value)
      : kind_(Kind::kMirrored), components_(value.begin(), value.end()) {}
  VariableValue(const Variable& variable);

  Kind kind() const { return kind_; }
  const std::vector<at::Tensor>& components() const { return components_; }

 private:
  Kind kind_;
  std::vector<at::Tensor> components_;
};

namespace internal {

template <class T>
inline constexpr bool is_operand = std::derived_from<T, Variable> || std::same_as<T, at::Tensor> ||
                                   std::is_arithmetic_v<T> || std::same_as<T, at::Scalar>;

/// The operands of an operator, at least one of which is a variable.
template <class A, class B>
concept Operands = is_operand<A> && is_operand<B> &&
    (std::derived_from<A, Variable> || std::derived_from<B, Variable>);

}  // namespace internal

/// A handle, cheap to copy; copies share the variable. It keeps its strategy alive.
///
/// In a replica it means the replica's own copy; outside of run() all copies; inside
/// StrategyExtended::update the one copy that is being updated. In the scope or run of
/// another strategy every use throws kFailedPrecondition. Writes are not recorded for
/// gradients. Not thread-safe, except that each replica may use its own copy.
class Variable {
 public:
  /// Makes a variable in the current strategy. The value is copied; every replica gets that of
  /// replica 0. Inside run() all replicas make the variable together: variables with the same
  /// canonical name (without "_<number>") are matched in order of creation.
  explicit Variable(const at::Tensor& initial_value, const VariableOptions& options = {},
                    CallSite site = CallSite::current());
  template <internal::Number T>
  explicit Variable(T initial_value, const VariableOptions& options = {},
                    CallSite site = CallSite::current())
      : Variable(as_tensor(initial_value, options), options, site) {}

  /// `initial_value` returns a tensor or a number and is called once, so random values agree.
  template <std::invocable F>
  explicit Variable(const F& initial_value, const VariableOptions& options = {},
                    CallSite site = CallSite::current())
      : Variable(
            FromFunction{},
            [&]() -> at::Tensor { return as_tensor(std::invoke(initial_value), options); }, options,
            site) {}

  /// Throws kInvalidArgument for a null pointer.
  explicit Variable(std::shared_ptr<VariableImpl> impl);

  // ---- reading

  /// In a replica: its own copy, which shares memory with the variable, as a parameter of a module
  /// does: gradients reach it, and later writes are visible. The same holds everywhere for a
  /// variable without a strategy. Outside of replicas: a copy of the component on the current
  /// device, otherwise of the first one; if the variable synchronises on read, the combination of
  /// the components.
  at::Tensor value() const;

  /// The same value in newly allocated memory.
  at::Tensor read_value() const;

  /// Like value(), but inside variable_sync_on_read_context() a replica gets the combination of all
  /// replicas' copies if the variable synchronises on read.
  operator at::Tensor() const;

  /// The gradient of this replica's copy. Outside of a replica the variable must have one copy, in
  /// this process.
  at::Tensor grad() const;

  // ---- writing; each returns the new value as value() would

  /// Tensors must have the shape and dtype of the variable; numbers are converted.
  at::Tensor assign(const VariableValue& value, const AssignOptions& options = {},
                    CallSite site = CallSite::current()) const;
  at::Tensor assign_add(const VariableValue& value, const AssignOptions& options = {},
                        CallSite site = CallSite::current()) const;
  at::Tensor assign_sub(const VariableValue& value, const AssignOptions& options = {},
                        CallSite site = CallSite::current()) const;

  /// Combine rows of the variable with the slices, one row at a time. scatter_min,
  /// scatter_max and scatter_update cannot aggregate by kSum or kMean (kUnimplemented).
  at::Tensor scatter_add(const IndexedSlices& slices, const AssignOptions& options = {},
                         CallSite site = CallSite::current()) const;
  at::Tensor scatter_sub(const IndexedSlices& slices, const AssignOptions& options = {},
                         CallSite site = CallSite::current()) const;
  at::Tensor scatter_mul(const IndexedSlices& slices, const AssignOptions& options = {},
                         CallSite site = CallSite::current()) const;
  at::Tensor scatter_div(const IndexedSlices& slices, const AssignOptions& options = {},
                         CallSite site = CallSite::current()) const;
  at::Tensor scatter_min(const IndexedSlices& slices, const AssignOptions& options = {},
                         CallSite site = CallSite::current()) const;
  at::Tensor scatter_max(const IndexedSlices& slices, const AssignOptions& options = {},
                         CallSite site = CallSite::current()) const;
  at::Tensor scatter_update(const IndexedSlices& slices, const AssignOptions& options = {},
                            CallSite site = CallSite::current()) const;

  // ---- what it is

  /// The name of this replica's copy, or of the first one outside of replicas: "v", "v/replica_1".
  const std::string& name() const;
  /// The device of that copy.
  const DeviceSpec& device() const;
  at::ScalarType dtype() const;
  at::IntArrayRef shape() const;
  bool trainable() const;
  bool is_initialized() const;
  VariableSynchronization synchronization() const;
  VariableAggregation aggregation() const;
  Strategy strategy() const;

  /// The local copies and their devices. The copies share memory with the variable.
  /// components() throws kUnimplemented if the value is in another process.
  const std::vector<at::Tensor>& components() const;
  const std::vector<DeviceSpec>& devices() const;

  /// A new variable of the same strategy, with equal options and values.
  Variable clone() const;

  const std::shared_ptr<VariableImpl>& impl() const { return impl_; }

  /// Whether both are handles of the same variable.
  bool is_same(const Variable& other) const { return impl_ == other.impl_; }

  // Operators on the value; a and b are variables, tensors or numbers.
  template <class A, class B>
    requires internal::Operands<A, B>
  friend at::Tensor operator+(const A& a, const B& b) {
    return combine('+', operand(a), operand(b));
  }
  template <class A, class B>
    requires internal::Operands<A, B>
  friend at::Tensor operator-(const A& a, const B& b) {
    return combine('-', operand(a), operand(b));
  }
  template <class A, class B>
    requires internal::Operands<A, B>
  friend at::Tensor operator*(const A& a, const B& b) {
    return combine('*', operand(a), operand(b));
  }
  template <class A, class B>
    requires internal::Operands<A, B>
  friend at::Tensor operator/(const A& a, const B& b) {
    return combine('/', operand(a), operand(b));
  }
  friend at::Tensor operator-(const Variable& a);

  /// MirroredVariable:{
  ///   0: <tf.Variable 'v:0' shape=() dtype=float32, numpy=1.0>,
  ///   1: <tf.Variable 'v/replica_1:0' shape=() dtype=float32, numpy=1.0>
  /// }
  friend std::ostream& operator<<(std::ostream& out, const Variable& variable);

 private:
  struct FromFunction {};
  Variable(FromFunction, FunctionRef<at::Tensor()> initial_value, const VariableOptions& options,
           CallSite site);

  static const at::Tensor& as_tensor(const at::Tensor& value, const VariableOptions&) {
    return value;
  }
  template <internal::Number T>
  static at::Tensor as_tensor(T value, const VariableOptions& options) {
    return internal::initial_number(internal::number_tensor_of(value), options.dtype);
  }

  // Numbers stay Scalars, which adopt the precision of the tensor.
  static at::Tensor operand(const Variable& variable) { return variable; }
  static const at::Tensor& operand(const at::Tensor& tensor) { return tensor; }
  static at::Scalar operand(const at::Scalar& number) { return number; }
  static at::Tensor combine(char op, const at::Tensor& a, const at::Tensor& b);
  static at::Tensor combine(char op, const at::Tensor& a, const at::Scalar& b);
  static at::Tensor combine(char op, const at::Scalar& a, const at::Tensor& b);

  std::shared_ptr<VariableImpl> impl_;
};

/// While it lives, a replica that converts a variable which synchronises on read to a tensor gets
/// the combination of all replicas' copies. It applies to the replica that made the scope; every
/// replica must do the same. Meanwhile value() and read_value() of such a variable throw
/// kUnimplemented there. An object belongs to the thread that makes it.
class VariableSyncOnReadScope {
 public:
  VariableSyncOnReadScope();

 private:
  const internal::SlotScope<&internal::ThreadContext::synchronising> slot_;
};

[[nodiscard]] inline VariableSyncOnReadScope variable_sync_on_read_context() { return {}; }

}  // namespace tutti
