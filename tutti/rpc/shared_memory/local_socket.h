// SPDX-License-Identifier: Apache-2.0
//
// Sockets between processes of one user on one machine, which pass descriptors of shared memory.
// Their names are not in the file system: they vanish with the socket, and exist once for each
// network namespace.

#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tutti/base/deadline.h"
#include "tutti/rpc/file_descriptor.h"

namespace tutti::rpc {

/// Listens under a random name. Not thread-safe.
class LocalListener {
 public:
  /// `backlog` connections may wait to be accepted. Throws kUnavailable when the system does not
  /// provide such a socket.
  explicit LocalListener(int backlog);

  const std::string& name() const { return name_; }

  /// Waits for the next connection of this user; those of others are closed. The result is not open
  /// after the deadline.
  FileDescriptor accept(const Deadline& deadline) const;

 private:
  std::string name_;
  FileDescriptor socket_;
};

/// Connects to the LocalListener of that name; the result is not open if there is none, or if it
/// belongs to another user.
FileDescriptor connect_locally(const std::string& name);

/// Sends `bytes` and a duplicate of the descriptor. Does not report failures: the receiver sees
/// them.
void send_descriptor(int socket, std::span<const std::byte> bytes, int descriptor);

/// Fills `bytes` and returns the descriptor that came with them; it is not open if nothing arrives
/// by the deadline, or anything but exactly these.
FileDescriptor receive_descriptor(int socket, std::span<std::byte> bytes, const Deadline& deadline);

}  // namespace tutti::rpc
