// SPDX-License-Identifier: Apache-2.0
//
// Where a reduced, gathered or broadcast value goes.

#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/device/device_spec.h"
#include "tutti/nest/nest.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"

namespace tutti {

class Variable;

/// One or more devices. Made from the name of a device, or from a value that is already where the
/// result should be; the value itself is not changed. The location of a nest is that of its first
/// tensor. LibTorch cannot tell logical CPUs apart, so component i of a value in host memory counts
/// as CPU:i. A plain value.
class Destinations {
 public:
  /// Throws kInvalidArgument for a name that is empty or not the name of a device, kNotFound for a
  /// device that this process does not have.
  Destinations(const char* device) : Destinations(std::string(device)) {}
  Destinations(const std::string& device);
  Destinations(const DeviceSpec& device);

  // Without this overload, 0 would convert to a null device name.
  template <class T>
    requires(std::is_arithmetic_v<T> || std::is_null_pointer_v<T>)
  Destinations(T) {
    static_assert(
        !std::is_same_v<T, T>,
        "Destinations: a number is not a device; name one, for example \"CPU:0\", or give "
        "a value that lies there");
  }

  /// Throws kInvalidArgument for an undefined tensor.
  Destinations(const at::Tensor& value);
  Destinations(const IndexedSlices& value) : Destinations(value.values()) {}

  /// Throws kInvalidArgument for a variable that lies in another process.
  Destinations(const Variable& variable);
  template <class T>
  Destinations(const PerReplica<T>& value) {
    for (const T& each : value) add(each, value.size());
  }
  template <class T>
  Destinations(const Mirrored<T>& value) {
    for (const T& each : value) add(each, value.size());
  }

  /// Throws kInvalidArgument for an empty list.
  explicit Destinations(std::vector<DeviceSpec> devices);

  const std::vector<DeviceSpec>& devices() const { return devices_; }
  size_t size() const { return devices_.size(); }

 private:
  static void check_devices(const std::vector<DeviceSpec>& devices);
  void add(const at::Tensor& component, size_t components);
  void add(const IndexedSlices& component, size_t components) {
    add(component.values(), components);
  }
  template <Nest T>
  void add(const T& component, size_t components) {
    add_leaves(leaves_of(component), components);
  }
  void add_leaves(const LeafList& leaves, size_t components);

  std::vector<DeviceSpec> devices_;
};

}  // namespace tutti
