// SPDX-License-Identifier: Apache-2.0
//
// Two hosts on one machine: network namespaces that are joined by a virtual cable and share nothing
// else of the network. They live as long as processes hold them, so nothing is left behind, however
// the program ends.

#pragma once

#include <array>
#include <memory>
#include <string>

#include "benchmarks/support/process_group.h"

namespace bench {

/// For one thread.
class TwoHosts {
 public:
  /// Null, after a line that says why: it needs root, a kernel that lets it, and the programs `ip`,
  /// `tc` and `nsenter`.
  static std::unique_ptr<TwoHosts> make();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// The address of host 0 or 1 on the cable.
  static std::string address(int host);

  /// The command that runs another one on a host.
  ProcessGroup::Command on(int host, ProcessGroup::Command command) const;

  /// Lets at most 1 Gbit/s through in each direction, or as much as goes.
  void set_shaped(bool shaped);

 private:
  TwoHosts() = default;

  bool run(int host, const std::string& words) const;

  std::array<int, 2> descriptors_ = {-1, -1};  // of the namespaces
  bool shaped_ = false;
};

}  // namespace bench
