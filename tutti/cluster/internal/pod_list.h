// SPDX-License-Identifier: Apache-2.0
//
// Reads one page of the list of pods that the API of Kubernetes returns.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::internal {

/// What a cluster needs to know of a pod; what the API does not say is empty.
struct Pod {
  std::string name;
  std::string pod_namespace;
  std::string hostname;  ///< In its specification; pods without one have their name.
  std::string phase;     ///< "Running", "Pending", "Succeeded", "Failed", "Unknown"
  std::string pod_ip;
  std::string host_ip;
  bool is_being_deleted = false;
};

struct PodPage {
  std::vector<Pod> pods;
  std::string next;  ///< The token of the next page; empty after the last.
};

/// Throws kDataLoss with the JSON pointer of the mistake; the message begins with `who`.
PodPage parse_pod_page(std::string_view who, std::string_view text);

}  // namespace tutti::internal
