// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/component_variable.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include "tutti/base/error.h"
#include "tutti/device/device_scope.h"

namespace tutti {
namespace {

bool can_have_gradient(at::ScalarType dtype) {
  return at::isFloatingType(dtype) || at::isComplexType(dtype);
}

std::vector<at::Tensor> copies(const VariableImpl& variable, const at::Tensor& value) {
  const c10::InferenceMode ordinary_tensors(false);  // they outlive the caller's mode
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> components;
  for (const DeviceSpec& device : variable.devices()) {
    at::Tensor component =
        at::empty(value.sizes(), at::TensorOptions(variable.dtype()).device(torch_device(device)));
    component.copy_(value);
    component.set_requires_grad(*variable.options().trainable &&
                                can_have_gradient(variable.dtype()));
    components.push_back(std::move(component));
  }
  return components;
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

ComponentVariable::ComponentVariable(VariableDefinition definition, const at::Tensor& initial_value,
                                     std::optional<size_t> value_parts)
    : VariableImpl(std::move(definition), value_parts), components_(copies(*this, initial_value)) {}

// ---- reading ------------------------------------------------------------------

at::Tensor ComponentVariable::local_value(const Place& place, Read how) const {
  const at::Tensor& component = local_component(place);
  return how == Read::kCopy ? component.clone() : component;
}

at::Tensor ComponentVariable::nearest_value() const {
  return components_[nearest_component()].detach().clone();
}

at::Tensor ComponentVariable::do_grad(const Place& place) const {
  if (place.kind == Place::Kind::kCross && value_parts() > 1) {
    const bool shared = components_.size() == 1;
    throw Error(
        ErrorCode::kFailedPrecondition,
        message("Variable::grad: ", describe(), shared ? " is shared by " : " has ", value_parts(),
                shared ? " replicas" : " copies", ", each with its own gradient. Call it inside ",
                shared ? "Strategy::run." : "Strategy::run, or take components()[i].grad()."));
  }
  return local_component(place).grad();
}

// ---- writing ------------------------------------------------------------------

void ComponentVariable::write_component(Write op, size_t i, const at::Tensor& value) {
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

void ComponentVariable::write_all(Write op, const VariableValue& value) {
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

void ComponentVariable::scatter_component(Scatter op, size_t i, const IndexedSlices& slices) {
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

void ComponentVariable::print(std::ostream& out) const {
  if (kind() == nullptr) {
    print_component(out, 0, components_[0]);
    return;
  }
  out << kind() << ":{\n";
  for (size_t i = 0; i < components_.size(); ++i) {
    out << "  " << i << ": ";
    print_component(out, i, components_[i]);
    out << (i + 1 < components_.size() ? ",\n" : "\n");
  }
  out << '}';
}

}  // namespace tutti
