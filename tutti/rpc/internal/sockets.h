// SPDX-License-Identifier: Apache-2.0
//
// Addresses, and sockets before they are handed to gRPC.

#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "tutti/base/address.h"
#include "tutti/base/deadline.h"
#include "tutti/rpc/file_descriptor.h"

namespace tutti::rpc::internal {

/// Like parse_address(), but allows port 0; the error begins with `who`.
Address split_address(const char* who, const std::string& address);

/// The address of a socket, as the system has it. A plain value.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  /// In numbers.
  std::string host() const;
  std::string to_string() const;
};

/// The addresses of a host; throws kUnavailable if it has none, or none arrives by the deadline.
std::vector<SocketAddress> resolve(const Address& address, Deadline deadline);

/// A listening, non-blocking socket; throws kUnavailable, naming the address, on failure.
FileDescriptor listen_on(const Address& address);
int local_port(int fd);

/// The address of a connected socket's peer.
std::string peer_of(int fd);

/// A connected, non-blocking socket with TCP_NODELAY; throws kUnavailable on failure.
FileDescriptor connect_to(const SocketAddress& address, Deadline deadline);

/// Waits until `fd` can be read (POLLIN) or written (POLLOUT); returns false after the deadline.
bool wait_for(int fd, short events, Deadline deadline);

}  // namespace tutti::rpc::internal
