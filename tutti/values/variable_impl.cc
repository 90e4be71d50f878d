// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/variable_impl.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/grad_mode.h>

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

VariableUpdate::Same sameness(const VariableValue& value) {
  switch (value.kind()) {
    case VariableValue::Kind::kNumber:
      return VariableUpdate::Same::kNumber;
    case VariableValue::Kind::kMirrored:
      return VariableUpdate::Same::kMirrored;
    default:
      return VariableUpdate::Same::kNo;
  }
}

// Identifies a mirrored value.
const void* identity(const VariableValue& value) {
  return value.kind() == VariableValue::Kind::kMirrored
             ? value.components()[0].unsafeGetTensorImpl()
             : nullptr;
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
  VariableDefinition definition{std::move(services), options, initial_value.sizes().vec(), devices};
  const at::ScalarType dtype = options.dtype.value_or(initial_value.scalar_type());
  definition.options.dtype = dtype;
  check_options(definition.options, dtype);
  if (!definition.options.trainable) {
    definition.options.trainable = options.synchronization != VariableSynchronization::kOnRead;
  }
  return definition;
}

VariableImpl::VariableImpl(VariableDefinition definition, std::optional<size_t> value_parts)
    : definition_(std::move(definition)), value_parts_(value_parts.value_or(devices().size())) {
  TUTTI_CHECK(!devices().empty() && options().dtype && options().trainable);
  for (size_t i = 0; i < devices().size(); ++i) {
    names_.push_back(i == 0 ? options().name : message(options().name, "/replica_", i));
  }
}

// ---- where --------------------------------------------------------------------

size_t VariableImpl::own_component() const {
  const internal::ContextFrame* frame = internal::current_frame();
  if (frame == nullptr || frame->services != &services()) return 0;
  const int i =
      frame->replica != nullptr ? frame->replica->local_replica_id() : frame->updated_component;
  return i < 0 ? 0 : std::min(static_cast<size_t>(i), devices().size() - 1);
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
  if (frame == nullptr) return {Place::Kind::kCross, 0};
  if (frame->services == &services()) {
    if (frame->replica != nullptr) {
      return {Place::Kind::kReplica, own_component(), frame->replica};
    }
    if (frame->updated_component >= 0) return {Place::Kind::kUpdate, own_component()};
    return {Place::Kind::kCross, 0};
  }
  // What was made outside of all scopes may be used anywhere.
  if (frame->services->is_ambient() || services().is_ambient()) return {Place::Kind::kCross, 0};
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
  const std::vector<at::Tensor>* const local = local_components();
  return local != nullptr && std::any_of(local->begin(), local->end(), [&](const at::Tensor& each) {
           return each.is_same(tensor);
         });
}

std::string VariableImpl::describe() const {
  return message("variable '", options().name, "' (", dtype_name(dtype()), shape(), ")");
}

const std::vector<at::Tensor>& VariableImpl::components() const {
  if (const std::vector<at::Tensor>* const local = local_components()) return *local;
  throw Error(ErrorCode::kUnimplemented,
              message("Variable::components: ", describe(),
                      " has no components in this process; its value is on ", devices()[0],
                      ". Read it with value(), and write it with assign() and its relatives."));
}

// ---- reading ------------------------------------------------------------------

at::Tensor VariableImpl::read(Read how) const { return do_read(place(to_string(how)), how); }

at::Tensor VariableImpl::grad() const { return do_grad(place("grad")); }

at::Tensor VariableImpl::do_grad(const Place&) const {
  throw Error(ErrorCode::kUnimplemented,
              message("Variable::grad: ", describe(),
                      " has no components in this process that could hold a gradient. Call "
                      "torch::autograd::grad() with the tensor that value() returned."));
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
  const bool has_parts = value.kind() == VariableValue::Kind::kPerReplica ||
                         (value.kind() == VariableValue::Kind::kMirrored && devices().size() > 1);
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
  if (part.layout() != at::kStrided || part.scalar_type() != dtype() || part.sizes() != shape()) {
    refuse(function, message("the value is ", tutti::describe(part), ", but ", describe(),
                             " takes a dense tensor of its own type and shape. Convert it first."));
  }
  return part.detach();
}

at::Tensor VariableImpl::combine(const char* function, const Place& place,
                                 const VariableValue& value, CallSite site) const {
  at::Tensor mine = checked_value(function, value, place.component);
  const LeafList leaves = {{Leaf::Kind::kTensor, 0, false, &mine}};
  services().combine_update(*place.context, {*this, function, options().aggregation, leaves,
                                             sameness(value), identity(value), site});
  return mine;
}

void VariableImpl::check_has_aggregation(const char* function) const {
  if (options().aggregation != VariableAggregation::kNone) return;
  throw Error(ErrorCode::kInvalidArgument,
              message("Variable::", function, ": you must specify an aggregation method to update ",
                      describe(),
                      " in a replica: all replicas share its one copy. Make it with "
                      "VariableOptions{.aggregation = ...}."));
}

void VariableImpl::combine_once(Write op, const Place& place, const VariableValue& value,
                                CallSite site,
                                FunctionRef<void(const at::Tensor& combined)> apply) const {
  const char* const function = to_string(op);
  at::Tensor mine =
      checked_value(function, value, static_cast<size_t>(place.context->local_replica_id()));
  check_has_aggregation(function);
  const LeafList leaves = {{Leaf::Kind::kTensor, 0, false, &mine}};
  const auto apply_leaf = [&](const Leaf& combined) { apply(combined.tensor()); };
  services().combine_update(*place.context, {*this, function, options().aggregation, leaves,
                                             sameness(value), identity(value), site, apply_leaf});
}

void VariableImpl::combine_once(Scatter op, const Place& place, const IndexedSlices& slices,
                                CallSite site,
                                FunctionRef<void(const IndexedSlices& combined)> apply) const {
  const char* const function = to_string(op);
  check_has_aggregation(function);
  IndexedSlices mine(slices.values().detach(), slices.indices(), slices.dense_shape());
  const LeafList leaves = {{Leaf::Kind::kIndexedSlices, 0, false, &mine}};
  const auto apply_leaf = [&](const Leaf& combined) { apply(combined.slices()); };
  services().combine_update(*place.context, {*this, function, options().aggregation, leaves,
                                             VariableUpdate::Same::kNo, nullptr, site, apply_leaf});
}

// ---- scattering ---------------------------------------------------------------

at::Tensor VariableImpl::scatter(Scatter op, const IndexedSlices& slices,
                                 const AssignOptions& options, CallSite site) {
  const at::NoGradGuard no_grad;
  const Place where = place(to_string(op));
  check_slices(op, slices);
  // Rows that alias a copy would change during the write.
  const std::vector<at::Tensor>* const local = local_components();
  const bool aliased =
      local != nullptr && std::any_of(local->begin(), local->end(), [&](const at::Tensor& each) {
        return slices.values().is_alias_of(each);
      });
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
  const at::Tensor& values = slices.values();
  if (op == Scatter::kAdd || op == Scatter::kSub || op == Scatter::kMul || op == Scatter::kDiv) {
    check_arithmetic(function, *this);
  }
  if (shape().empty()) refuse(function, message(describe(), " has no rows; use assign."));
  const bool fits =
      values.scalar_type() == dtype() && values.sizes().slice(1) == shape().slice(1) &&
      (slices.dense_shape().empty() || at::IntArrayRef(slices.dense_shape()) == shape());
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
  if (lowest < 0 || highest >= shape()[0]) {
    refuse(function, message("there is no row ", lowest < 0 ? lowest : highest, " in ", describe(),
                             "; its rows are 0 to ", shape()[0] - 1, "."));
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

// ---- printing -----------------------------------------------------------------

void VariableImpl::print_component(std::ostream& out, size_t i, const at::Tensor& value) const {
  out << "<tf.Variable '" << component_name(i) << ":0' shape=" << shape_text(shape())
      << " dtype=" << dtype_name(dtype()) << ", numpy=" << elements_text(value) << ">";
}

// Works wherever the thread is, also in the scope of another strategy.
void VariableImpl::print(std::ostream& out) const {
  print_component(out, 0, do_read({Place::Kind::kCross, 0}, Read::kCopy));
}

}  // namespace tutti
