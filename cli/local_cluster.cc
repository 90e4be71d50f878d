// SPDX-License-Identifier: Apache-2.0

#include "cli/local_cluster.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "tutti/base/address.h"

#include "cli/descriptor.h"

namespace tutti::cli {

std::vector<std::string> free_addresses(int count) {
  std::vector<Descriptor> sockets;  // All stay open until the end, so that no port comes twice.
  std::vector<std::string> addresses;
  for (int i = 0; i < count; ++i) {
    sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    const int socket = sockets.back().get();
    if (bind(socket, any, size) != 0 || getsockname(socket, any, &size) != 0) {
      throw Error(ErrorCode::kUnavailable,
                  message("no free port on 127.0.0.1 for worker ", i, ": ", std::strerror(errno)));
    }
    addresses.push_back(Address{"127.0.0.1", ntohs(address.sin_port)}.to_string());
  }
  return addresses;
}

std::map<std::string, std::string> worker_environment(const std::vector<std::string>& addresses,
                                                      int index) {
  std::string list;
  for (const std::string& each : addresses) list += (list.empty() ? "\"" : ", \"") + each + '"';
  return {{"TF_CONFIG", message(R"({"cluster": {"worker": [)", list,
                                R"(]}, "task": {"type": "worker", "index": )", index, "}}")}};
}

}  // namespace tutti::cli
