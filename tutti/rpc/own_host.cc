// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/own_host.h"

#include <sys/socket.h>

#include <vector>

#include "tutti/base/error.h"
#include "tutti/rpc/file_descriptor.h"
#include "tutti/rpc/internal/sockets.h"

namespace tutti::rpc {

std::string own_host_towards(const std::string& address, const Deadline& deadline) {
  const Address towards = parse_address(address, PortZero::kRefused);
  std::vector<internal::SocketAddress> found;
  try {
    found = internal::resolve(towards, deadline);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUnavailable) return "";
    throw;
  }
  for (const internal::SocketAddress& each : found) {
    const FileDescriptor socket(::socket(each.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    internal::SocketAddress mine;
    mine.size = sizeof mine.storage;
    if (socket.is_open() &&
        connect(socket.get(), reinterpret_cast<const sockaddr*>(&each.storage), each.size) == 0 &&
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&mine.storage), &mine.size) == 0) {
      return mine.host();
    }
  }
  return "";
}

}  // namespace tutti::rpc
