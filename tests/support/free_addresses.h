// SPDX-License-Identifier: Apache-2.0
//
// Addresses for workers that a test starts.

#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::test {

/// Loopback addresses, with ports that were free a moment ago.
inline std::vector<std::string> free_addresses(int count) {
  std::vector<std::string> addresses;
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    TUTTI_CHECK(bind(sockets.back(), reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                getsockname(sockets.back(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    addresses.push_back("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
  }
  for (const int each : sockets) close(each);
  return addresses;
}

}  // namespace tutti::test
