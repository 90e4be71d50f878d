// SPDX-License-Identifier: Apache-2.0
//
// Two hosts on one machine: network namespaces that are joined by a virtual cable and are otherwise
// isolated. They live as long as processes hold them, so nothing is left behind, however
// the program ends.

#pragma once

#include <array>
#include <memory>
#include <string>

#include "benchmarks/support/process_group.h"

namespace bench {

/// Use it on one thread only.
class TwoHosts {
 public:
  /// Needs root, a kernel with network namespaces, and the programs `ip`, `tc` and `nsenter`;
  /// otherwise it prints why not and returns null.
  static std::unique_ptr<TwoHosts> make();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// The address of host 0 or 1 on the cable.
  static std::string address(int host);

  /// Returns the command that runs `command` on a host.
  ProcessGroup::Command on(int host, ProcessGroup::Command command) const;

  /// Limits each direction to 1 Gbit/s, or removes the limit.
  void set_shaped(bool shaped);

 private:
  TwoHosts() = default;

  bool run(int host, const std::string& words) const;

  std::array<int, 2> descriptors_ = {-1, -1};  // of the namespaces
  bool shaped_ = false;
};

}  // namespace bench
