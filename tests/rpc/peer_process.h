// SPDX-License-Identifier: Apache-2.0
//
// A listener of rpc in its own process, which tests may stop or kill.

#pragma once

#include <string>

#include "tests/support/server_process.h"

namespace tutti::rpc::test {

class PeerProcess {
 public:
  /// A limit of file descriptors, if it is not empty.
  explicit PeerProcess(const std::string& secret, const std::string& limit = "")
      : process_(limit.empty() ? std::vector<std::string>{TUTTI_RPC_PEER, secret}
                               : std::vector<std::string>{TUTTI_RPC_PEER, secret, limit}) {}

  const std::string& address() const { return process_.first_line(); }
  void signal(int number) const { process_.signal(number); }

 private:
  tutti::test::ServerProcess process_;
};

}  // namespace tutti::rpc::test
