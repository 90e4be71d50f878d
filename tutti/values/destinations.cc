// SPDX-License-Identifier: Apache-2.0

#include "tutti/values/destinations.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/device/logical_devices.h"

namespace tutti {
namespace {

DeviceSpec device_of(const at::Tensor& tensor, size_t cpu) {
  if (!tensor.defined()) {
    throw Error(ErrorCode::kInvalidArgument, "Destinations: the tensor is undefined.");
  }
  const at::Device device = tensor.device();
  if (device.is_cpu()) return {"localhost", 0, 0, "CPU", static_cast<int>(cpu)};
  if (!device.is_cuda()) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Destinations: a tensor lies on \"", device.str(),
                        "\"; only CPUs and GPUs can be destinations."));
  }
  return DeviceSpec::canonical(message("GPU:", static_cast<int>(device.index())));
}

}  // namespace

void Destinations::check_devices(const std::vector<DeviceSpec>& devices) {
  for (const DeviceSpec& device : devices) {
    internal::logical_device_table().check("Destinations", device);
  }
}

Destinations::Destinations(const std::string& device) {
  if (device.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "Destinations: destinations can not be empty; name a device such as \"CPU:0\".");
  }
  devices_.push_back(DeviceSpec::canonical(device));
  check_devices(devices_);
}

Destinations::Destinations(const DeviceSpec& device) : devices_{device} { check_devices(devices_); }

Destinations::Destinations(const at::Tensor& value) : devices_{device_of(value, 0)} {}

Destinations::Destinations(std::vector<DeviceSpec> devices) : devices_(std::move(devices)) {
  if (devices_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "Destinations: destinations can not be empty.");
  }
  check_devices(devices_);
}

void Destinations::add(const at::Tensor& component, size_t components) {
  devices_.push_back(device_of(component, components == 1 ? 0 : devices_.size()));
}

void Destinations::add_leaves(const LeafList& leaves, size_t components) {
  for (const Leaf& leaf : leaves) {
    if (leaf.kind == Leaf::Kind::kTensor) return add(leaf.tensor(), components);
    if (leaf.kind == Leaf::Kind::kIndexedSlices) return add(leaf.slices(), components);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "Destinations: the value has no tensor and therefore no device; name one.");
}

}  // namespace tutti
