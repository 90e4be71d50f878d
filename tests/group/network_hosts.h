// SPDX-License-Identifier: Apache-2.0
//
// Hosts for ranks that are processes: network namespaces connected by a switch. Needs root.

#pragma once

#include <string>

namespace tutti::group_tests {

/// The first object makes them, and they vanish with it; nothing outside of them changes.
class NetworkHosts {
 public:
  static constexpr int kCount = 5;

  NetworkHosts();
  ~NetworkHosts();
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  static bool possible();

  /// The name that `ip netns exec` takes.
  static std::string name(int host);
  /// Without a port.
  static std::string address(int host);
};

}  // namespace tutti::group_tests
