// SPDX-License-Identifier: Apache-2.0
//
// Hosts for ranks that are processes: network namespaces with a switch between them. Needs root.

#pragma once

#include <string>

namespace tutti::group_tests {

/// They are made by the first object and are gone with it; nothing outside of them changes.
class NetworkHosts {
 public:
  static constexpr int kCount = 5;

  NetworkHosts();
  ~NetworkHosts();
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;

  static bool possible();

  /// For `ip netns exec`.
  static std::string name(int host);
  /// Without a port.
  static std::string address(int host);
};

}  // namespace tutti::group_tests
