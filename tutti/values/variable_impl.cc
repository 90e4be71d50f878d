// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/variable_impl.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "tutti/base/error.h"
#include "tutti/device/device_scope.h"
#include "tutti/nest/print.h"
#include "tutti/values/context_frame.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/strategy_services.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const char* function, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message("Variable::", function, ": ", reason));
}

bool can_have_gradient(at::ScalarType dtype) {
  return at::isFloatingType(dtype) || at::isComplexType(dtype);
}

void check_arithmetic(const char* function, const VariableImpl& variable) {
  if (variable.dtype() != at::kBool) return;
  refuse(function, message(variable.describe(),
                           " has dtype bool, which does not support arithmetic. "
                           "Use assign(), or an integer variable."));
}

void check_options(const VariableOptions& options, at::ScalarType dtype) {
  const std::string who = message("Variable: '", options.name, "'");
  switch (options.synchronization) {
    case VariableSynchronization::kAuto:
    case VariableSynchronization::kNone:
    case VariableSynchronization::kOnWrite:
    case VariableSynchronization::kOnRead:
      break;
    default:
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, " has an invalid variable synchronization mode, ",
                          static_cast<int>(options.synchronization),
                          "; use kAuto, kNone, kOnWrite or kOnRead."));
  }
  switch (options.aggregation) {
    case VariableAggregation::kNone:
    case VariableAggregation::kSum:
    case VariableAggregation::kMean:
    case VariableAggregation::kOnlyFirstReplica:
      break;
    default:
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, " has an invalid variable aggregation mode, ",
                          static_cast<int>(options.aggregation),
                          "; use kNone, kSum, kMean or kOnlyFirstReplica."));
  }
  if (options.aggregation == VariableAggregation::kMean && !at::isFloatingType(dtype)) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, " is ", dtype_name(dtype),
                        ", which cannot aggregate by kMean; only floating-point variables can. "
                        "Convert it, or use another aggregation."));
  }
}

// Writes one row at a time, so that rows that occur twice have a defined result.
void scatter_rows(VariableImpl::Scatter op, const at::Tensor& component,
                  const IndexedSlices& slices) {
  using Scatter = VariableImpl::Scatter;
  const at::Tensor rows = slices.indices().to(at::kCPU, at::kLong).contiguous();
  const auto* const row = rows.data_ptr<int64_t>();
  const bool integer = at::isIntegralType(component.scalar_type(), /*includeBool=*/true);
  for (int64_t i = 0; i < rows.numel(); ++i) {
    at::Tensor target = component.select(0, row[i]);
    const at::Tensor value = slices.values().select(0, i);
    switch (op) {
      case Scatter::kAdd:
        target.add_(value);
        break;
      case Scatter::kSub:
        target.sub_(value);
        break;
      case Scatter::kMul:
        target.mul_(value);
        break;
      case Scatter::kDiv:
        if (integer) {
          target.div_(value, "trunc");
        } else {
          target.div_(value);
        }
        break;
      case Scatter::kMin:
        target.copy_(target.minimum(value));
        break;
      case Scatter::kMax:
        target.copy_(target.maximum(value));
        break;
      default:
        target.copy_(value);
    }
  }
}

}  // namespace

const char* to_string(VariableImpl::Read how) {
  return how == VariableImpl::Read::kCopy ? "read_value" : "value";
}

const char* to_string(VariableImpl::Write op) {
  static constexpr std::array kNames = {"assign", "assign_add", "assign_sub"};
  return kNames[static_cast<size_t>(op)];
}

const char* to_string(VariableImpl::Scatter op) {
  static constexpr std::array kNames = {"scatter_add",   "scatter_sub", "scatter_mul",
                                        "scatter_div",   "scatter_min", "scatter_max",
                                        "scatter_update"};
  return kNames[static_cast<size_t>(op)];
}

VariableDefinition define_variable(std::shared_ptr<StrategyServices> services,
                                   const VariableOptions& options, const at::Tensor& initial_value,
                                   const std::vector<DeviceSpec>& devices) {
  if (!initial_value.defined() || initial_value.layout() != at::kStrided) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Variable: the initial value of '", options.name, "' is ",
                        initial_value.defined() ? "not a dense" : "an undefined",
                        " tensor. Give a dense one, or a function that returns one."));
  }
  VariableDefinition definition{std::move(services), options, devices, {}};
  const at::ScalarType dtype = options.dtype.value_or(initial_value.scalar_type());
  definition.options.dtype = dtype;
  check_options(definition.options, dtype);
  if (!definition.options.trainable) {
    definition.options.trainable = options.synchronization != VariableSynchronization::kOnRead;
  }
  const c10::InferenceMode ordinary_tensors(false);  // they outlive the caller's mode
  const at::NoGradGuard no_grad;
  for (const DeviceSpec& device : devices) {
    at::Tensor component =
        at::empty(initial_value.sizes(), at::TensorOptions(dtype).device(torch_device(device)));
    component.copy_(initial_value);
    component.set_requires_grad(*definition.options.trainable && can_have_gradient(dtype));
    definition.components.push_back(std::move(component));
  }
  return definition;
}

VariableImpl::VariableImpl(VariableDefinition definition) : definition_(std::move(definition)) {
  TUTTI_CHECK(!components().empty() && components().size() == devices().size());
  for (size_t i = 0; i < components().size(); ++i) {
    names_.push_back(i == 0 ? options().name : message(options().name, "/replica_", i));
  }
}

// ---- where --------------------------------------------------------------------

size_t VariableImpl::own_component() const {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr || frame->services != &services()) return 0;
  const int i =
      frame->replica != nullptr ? frame->replica->local_replica_id() : frame->updated_component;
  return i < 0 ? 0 : std::min(static_cast<size_t>(i), components().size() - 1);
}

size_t VariableImpl::nearest_component() const {
  const internal::ContextFrame* frame = internal::current_frame();
  const bool inside = frame != nullptr && frame->services == &services() &&
                      (frame->replica != nullptr || frame->updated_component >= 0);
  if (const DeviceSpec* device = current_device(); device != nullptr && !inside) {
    for (size_t i = 0; i < devices().size(); ++i) {
      if (devices()[i] == *device) return i;
    }
  }
  return own_component();
}

VariableImpl::Place VariableImpl::place(const char* function) const {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr || (frame->services != &services() && frame->services->is_ambient())) {
    return {Place::Kind::kCross, 0};
  }
  if (frame->services == &services()) {
    if (frame->replica != nullptr) {
      return {Place::Kind::kReplica, own_component(), frame->replica};
    }
    if (frame->updated_component >= 0) return {Place::Kind::kUpdate, own_component()};
    return {Place::Kind::kCross, 0};
  }
  throw Error(
      ErrorCode::kFailedPrecondition,
      message("Variable::", function, ": mixing different strategies: ", describe(), " belongs to ",
              services().describe(),
              ", but the calling thread is in the scope "
              "or run of ",
              frame->services->describe(),
              frame->services->describe() == services().describe() ? " (another object)" : "",
              ". Leave that first, or make the variable there."));
}

bool VariableImpl::owns(const at::Tensor& tensor) const {
  return std::any_of(components().begin(), components().end(),
                     [&](const at::Tensor& each) { return each.is_same(tensor); });
}

std::string VariableImpl::describe() const {
  return message("variable '", options().name, "' (", tutti::describe(components()[0]), ")");
}

// ---- reading ------------------------------------------------------------------

at::Tensor VariableImpl::read(Read how) { return do_read(place(to_string(how)), how); }

at::Tensor VariableImpl::local_value(const Place& place, Read how) const {
  const at::Tensor& component = local_component(place);
  return how == Read::kCopy ? component.clone() : component;
}

at::Tensor VariableImpl::nearest_value() const {
  return components()[nearest_component()].detach().clone();
}

at::Tensor VariableImpl::grad() const {
  const Place where = place("grad");
  if (where.kind == Place::Kind::kCross && value_parts() > 1) {
    const bool shared = components().size() == 1;
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("Variable::grad: ", describe(), shared ? " is shared by " : " has ", value_parts(),
                shared ? " replicas" : " copies", ", each with its own gradient. Call it inside ",
                shared ? "Strategy::run." : "Strategy::run, or take components()[i].grad()."));
  }
  return local_component(where).grad();
}

// ---- writing ------------------------------------------------------------------

at::Tensor VariableImpl::write(Write op, const VariableValue& value, const AssignOptions& options,
                               CallSite site) {
  const at::NoGradGuard no_grad;
  const Place where = place(to_string(op));
  if (op != Write::kAssign) check_arithmetic(to_string(op), *this);
  do_write(op, where, value, site);
  return options.read_value ? do_read(where, Read::kAfterWrite) : at::Tensor();
}

at::Tensor VariableImpl::checked_value(const char* function, const VariableValue& value,
                                       size_t i) const {
  const std::vector<at::Tensor>& parts = value.components();
  // The components of a Mirrored are equal, so one copy may take any number of them.
  const bool has_parts =
      value.kind() == VariableValue::Kind::kPerReplica ||
      (value.kind() == VariableValue::Kind::kMirrored && components().size() > 1);
  if (has_parts && parts.size() != value_parts()) {
    refuse(function, message("the value has ", parts.size(), " components, but ", describe(),
                             " takes ", value_parts(), ". Was it made by another strategy?"));
  }
  const at::Tensor& part = parts[has_parts ? i : 0];
  if (!part.defined())
    refuse(function,
           message("the value for ", describe(), " is an undefined tensor. Compute it first."));
  if (value.kind() == VariableValue::Kind::kNumber) {
    const bool to_integer = at::isIntegralType(dtype(), /*includeBool=*/true);
    if (to_integer && !part.equal(part.to(dtype()).to(part.scalar_type()))) {
      refuse(function, message("the number ", elements_text(part), " cannot be stored in ",
                               describe(), ". Round it, or make the variable floating-point."));
    }
    return part.to(dtype());
  }
  if (part.layout() != at::kStrided || part.scalar_type() != dtype() ||
      part.sizes() != components()[0].sizes()) {
    refuse(function, message("the value is ", tutti::describe(part), ", but ", describe(),
                             " takes a dense tensor of its own type and shape. Convert it first."));
  }
  return part.detach();
}

void VariableImpl::write_component(Write op, size_t i, const at::Tensor& value) {
  at::Tensor component = components()[i];
  // A view of the component would change during the write.
  const at::Tensor local =
      value.is_alias_of(component) ? value.clone() : value.to(component.device());
  switch (op) {
    case Write::kAssign:
      component.copy_(local);
      break;
    case Write::kAdd:
      component.add_(local);
      break;
    case Write::kSub:
      component.sub_(local);
      break;
  }
}

void VariableImpl::write_all(Write op, const VariableValue& value) {
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < components().size(); ++i) {
    at::Tensor mine = checked_value(to_string(op), value, i);
    // A value that aliases another copy would change while this loop writes that copy.
    for (size_t j = 0; j < components().size(); ++j) {
      if (j != i && mine.is_alias_of(components()[j])) mine = mine.clone();
    }
    values.push_back(std::move(mine));
  }
  for (size_t i = 0; i < values.size(); ++i) write_component(op, i, values[i]);
}

VariableUpdate::Same VariableImpl::sameness(const VariableValue& value) {
  switch (value.kind()) {
    case VariableValue::Kind::kNumber:
      return VariableUpdate::Same::kNumber;
    case VariableValue::Kind::kMirrored:
      return VariableUpdate::Same::kMirrored;
    default:
      return VariableUpdate::Same::kNo;
  }
}

const void* VariableImpl::identity(const VariableValue& value) {
  return value.kind() == VariableValue::Kind::kMirrored
             ? value.components()[0].unsafeGetTensorImpl()
             : nullptr;
}

at::Tensor VariableImpl::combine(const char* function, const Place& place,
                                 const VariableValue& value, CallSite site) const {
  at::Tensor mine = checked_value(function, value, place.component);
  const LeafList leaves = {{Leaf::Kind::kTensor, 0, false, &mine}};
  services().combine_update(*place.context, {*this, function, options().aggregation, leaves,
                                             sameness(value), identity(value), site});
  return mine;
}

// ---- scattering ---------------------------------------------------------------

at::Tensor VariableImpl::scatter(Scatter op, const IndexedSlices& slices,
                                 const AssignOptions& options, CallSite site) {
  const at::NoGradGuard no_grad;
  const Place where = place(to_string(op));
  check_slices(op, slices);
  // Rows that alias a copy would change during the write.
  const bool aliased =
      std::any_of(components().begin(), components().end(),
                  [&](const at::Tensor& each) { return slices.values().is_alias_of(each); });
  if (aliased) {
    const IndexedSlices own(slices.values().detach().clone(), slices.indices(),
                            slices.dense_shape());
    do_scatter(op, where, own, site);
  } else {
    do_scatter(op, where, slices, site);
  }
  return options.read_value ? do_read(where, Read::kAfterWrite) : at::Tensor();
}

void VariableImpl::check_slices(Scatter op, const IndexedSlices& slices) const {
  const char* const function = to_string(op);
  const at::Tensor& first = components()[0];
  const at::Tensor& values = slices.values();
  if (op == Scatter::kAdd || op == Scatter::kSub || op == Scatter::kMul || op == Scatter::kDiv) {
    check_arithmetic(function, *this);
  }
  if (first.dim() == 0) refuse(function, message(describe(), " has no rows; use assign."));
  const bool fits =
      values.scalar_type() == dtype() && values.sizes().slice(1) == first.sizes().slice(1) &&
      (slices.dense_shape().empty() || at::IntArrayRef(slices.dense_shape()) == first.sizes());
  if (!fits) {
    refuse(function, message("the slices are ", tutti::describe(values),
                             slices.dense_shape().empty()
                                 ? std::string()
                                 : message(" of ", at::IntArrayRef(slices.dense_shape())),
                             ", but ", describe(), " takes rows of its own type and shape."));
  }
  if (values.size(0) == 0) return;
  const auto lowest = slices.indices().min().item<int64_t>();
  const auto highest = slices.indices().max().item<int64_t>();
  if (lowest < 0 || highest >= first.size(0)) {
    refuse(function, message("there is no row ", lowest < 0 ? lowest : highest, " in ", describe(),
                             "; its rows are 0 to ", first.size(0) - 1, "."));
  }
  // LibTorch would throw halfway through.
  if (op == Scatter::kDiv && at::isIntegralType(dtype(), /*includeBool=*/true) &&
      !values.ne(0).all().item<bool>()) {
    refuse(function, message("the slices for ", describe(), " divide an integer by zero."));
  }
}

void VariableImpl::check_aggregates(Scatter op) const {
  const VariableAggregation aggregation = options().aggregation;
  const bool reduces =
      aggregation == VariableAggregation::kSum || aggregation == VariableAggregation::kMean;
  if (!reduces || (op != Scatter::kMin && op != Scatter::kMax && op != Scatter::kUpdate)) return;
  throw Error(ErrorCode::kUnimplemented,
              message("Variable::", to_string(op), ": ", describe(), " aggregates by ", aggregation,
                      "; ", to_string(op), " needs kNone or kOnlyFirstReplica."));
}

IndexedSlices VariableImpl::combine(Scatter op, const Place& place, const IndexedSlices& slices,
                                    CallSite site) const {
  IndexedSlices mine(slices.values().detach(), slices.indices(), slices.dense_shape());
  const LeafList leaves = {{Leaf::Kind::kIndexedSlices, 0, false, &mine}};
  services().combine_update(*place.context, {*this, to_string(op), options().aggregation, leaves,
                                             VariableUpdate::Same::kNo, nullptr, site});
  return mine;
}

void VariableImpl::scatter_component(Scatter op, size_t i, const IndexedSlices& slices) {
  at::Tensor component = components()[i];
  const at::Device device = component.device();
  const IndexedSlices local(slices.values().to(device), slices.indices().to(device));
  // Other devices add rows that occur twice in an arbitrary order.
  if ((op == Scatter::kAdd || op == Scatter::kSub) && device.is_cpu()) {
    component.index_add_(0, local.indices(), local.values(), op == Scatter::kAdd ? 1 : -1);
  } else {
    scatter_rows(op, component, local);
  }
}

// ---- printing -----------------------------------------------------------------

void VariableImpl::print(std::ostream& out) const {
  const auto component = [&](size_t i) {
    const at::Tensor& tensor = components()[i];
    return message("<tf.Variable '", component_name(i), ":0' shape=", shape_text(tensor.sizes()),
                   " dtype=", dtype_name(tensor.scalar_type()), ", numpy=", elements_text(tensor),
                   ">");
  };
  if (kind() == nullptr) {
    out << component(0);
    return;
  }
  out << kind() << ":{\n";
  for (size_t i = 0; i < components().size(); ++i) {
    out << "  " << i << ": " << component(i) << (i + 1 < components().size() ? ",\n" : "\n");
  }
  out << '}';
}

}  // namespace tutti
