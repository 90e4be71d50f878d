// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/variable.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>

#include "tutti/base/error.h"
#include "tutti/values/destinations.h"
#include "tutti/values/replica_context.h"
#include "tutti/values/strategy_services.h"
#include "tutti/values/variable_impl.h"

namespace tutti {
namespace internal {

at::Tensor number_tensor(double value) { return at::scalar_tensor(value, at::kDouble); }
at::Tensor number_tensor(int64_t value) { return at::scalar_tensor(value, at::kLong); }
at::Tensor number_tensor(bool value) { return at::scalar_tensor(value, at::kBool); }

at::Tensor initial_number(const at::Tensor& number, std::optional<at::ScalarType> dtype) {
  if (!dtype && number.is_floating_point()) {
    dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
  }
  return dtype ? number.to(*dtype) : number;
}

}  // namespace internal

namespace {

template <class B>
at::Tensor apply_operator(char op, const at::Tensor& a, const B& b) {
  if (op == '+') return at::add(a, b);
  if (op == '-') return at::sub(a, b);
  return op == '*' ? at::mul(a, b) : at::div(a, b);
}

}  // namespace

VariableValue::VariableValue(const Variable& variable) : kind_(Kind::kTensor) {
  VariableImpl& impl = *variable.impl();
  if (impl.is_mirrored()) {
    impl.check_usable("assign");
    kind_ = Kind::kMirrored;
    components_ = impl.components();
  } else {
    components_ = {variable};
  }
}

Destinations::Destinations(const Variable& variable) : devices_(variable.devices()) {
  if (!variable.impl()->has_components()) check_devices(devices_);
}

Variable::Variable(const at::Tensor& initial_value, const VariableOptions& options, CallSite site)
    : impl_(internal::current_services().create_variable(
          {options, [&] { return initial_value; }, /*is_function=*/false, site})) {}

Variable::Variable(FromFunction, FunctionRef<at::Tensor()> initial_value,
                   const VariableOptions& options, CallSite site)
    : impl_(internal::current_services().create_variable(
          {options, initial_value, /*is_function=*/true, site})) {}

Variable::Variable(std::shared_ptr<VariableImpl> impl) : impl_(std::move(impl)) {
  if (impl_ == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "Variable: the VariableImpl is null.");
  }
}

at::Tensor Variable::value() const { return impl_->read(VariableImpl::Read::kValue); }
at::Tensor Variable::read_value() const { return impl_->read(VariableImpl::Read::kCopy); }
Variable::operator at::Tensor() const { return impl_->read(VariableImpl::Read::kConvert); }
at::Tensor Variable::grad() const { return impl_->grad(); }

at::Tensor Variable::assign(const VariableValue& value, const AssignOptions& options,
                            CallSite site) const {
  return impl_->write(VariableImpl::Write::kAssign, value, options, site);
}
at::Tensor Variable::assign_add(const VariableValue& value, const AssignOptions& options,
                                CallSite site) const {
  return impl_->write(VariableImpl::Write::kAdd, value, options, site);
}
at::Tensor Variable::assign_sub(const VariableValue& value, const AssignOptions& options,
                                CallSite site) const {
  return impl_->write(VariableImpl::Write::kSub, value, options, site);
}

at::Tensor Variable::scatter_add(const IndexedSlices& slices, const AssignOptions& options,
                                 CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kAdd, slices, options, site);
}
at::Tensor Variable::scatter_sub(const IndexedSlices& slices, const AssignOptions& options,
                                 CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kSub, slices, options, site);
}
at::Tensor Variable::scatter_mul(const IndexedSlices& slices, const AssignOptions& options,
                                 CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kMul, slices, options, site);
}
at::Tensor Variable::scatter_div(const IndexedSlices& slices, const AssignOptions& options,
                                 CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kDiv, slices, options, site);
}
at::Tensor Variable::scatter_min(const IndexedSlices& slices, const AssignOptions& options,
                                 CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kMin, slices, options, site);
}
at::Tensor Variable::scatter_max(const IndexedSlices& slices, const AssignOptions& options,
                                 CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kMax, slices, options, site);
}
at::Tensor Variable::scatter_update(const IndexedSlices& slices, const AssignOptions& options,
                                    CallSite site) const {
  return impl_->scatter(VariableImpl::Scatter::kUpdate, slices, options, site);
}

const std::string& Variable::name() const { return impl_->component_name(impl_->own_component()); }
const DeviceSpec& Variable::device() const { return impl_->devices()[impl_->nearest_component()]; }
at::ScalarType Variable::dtype() const { return impl_->dtype(); }
at::IntArrayRef Variable::shape() const { return impl_->shape(); }
bool Variable::trainable() const { return *impl_->options().trainable; }
VariableSynchronization Variable::synchronization() const {
  return impl_->options().synchronization;
}
VariableAggregation Variable::aggregation() const { return impl_->options().aggregation; }
const std::vector<at::Tensor>& Variable::components() const { return impl_->components(); }
const std::vector<DeviceSpec>& Variable::devices() const { return impl_->devices(); }

bool Variable::is_initialized() const {
  if (!impl_->has_components()) return true;
  for (const at::Tensor& component : impl_->components()) {
    if (!component.defined()) return false;
  }
  return true;
}

std::ostream& operator<<(std::ostream& out, const Variable& variable) {
  variable.impl_->print(out);
  return out;
}

at::Tensor operator-(const Variable& a) { return at::neg(a); }

at::Tensor Variable::combine(char op, const at::Tensor& a, const at::Tensor& b) {
  return apply_operator(op, a, b);
}

at::Tensor Variable::combine(char op, const at::Tensor& a, const at::Scalar& b) {
  return apply_operator(op, a, b);
}

at::Tensor Variable::combine(char op, const at::Scalar& a, const at::Tensor& b) {
  if (op == '+') return at::add(b, a);
  if (op == '*') return at::mul(b, a);
  if (op == '-') return at::rsub(b, a);
  return at::div(at::native::wrapped_scalar_tensor(a), b);
}

}  // namespace tutti
