// SPDX-License-Identifier: Apache-2.0
//
// Names of devices, as TensorFlow writes them: "GPU:0", "/cpu:1",
// "/job:worker/replica:0/task:1/device:CPU:0". A DeviceSpec identifies a place;
// device_scope.h turns it into a LibTorch device, which cannot tell two logical
// CPU devices apart.

#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace tutti {

/// A full or partial device name. A plain value.
struct DeviceSpec {
  std::optional<std::string> job = std::nullopt;
  std::optional<int> replica = std::nullopt;
  std::optional<int> task = std::nullopt;
  std::optional<std::string> type = std::nullopt;  ///< "CPU", "GPU", ...: upper case.
  std::optional<int> index = std::nullopt;

  /// Reads a name; parts that are missing or "*" stay empty. Throws kInvalidArgument with the text
  /// and the offending part.
  static DeviceSpec parse(std::string_view text);

  /// parse(), then fills what is missing from job "localhost", replica 0,
  /// task 0, device CPU:0.
  static DeviceSpec canonical(std::string_view text);

  /// This spec, with every field that is set in `other` taken from there.
  DeviceSpec merged_with(const DeviceSpec& other) const;

  /// True if every field that is set in `pattern` has the same value here.
  bool matches(const DeviceSpec& pattern) const;

  /// "/job:localhost/replica:0/task:0/device:CPU:0"; empty fields are left out.
  std::string to_string() const;

  /// "CPU:0"
  std::string short_name() const;

  bool operator==(const DeviceSpec&) const = default;
};

std::ostream& operator<<(std::ostream& out, const DeviceSpec& spec);

}  // namespace tutti
