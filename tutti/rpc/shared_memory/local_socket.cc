// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/shared_memory/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "tutti/base/error.h"
#include "tutti/rpc/internal/random.h"
#include "tutti/rpc/internal/sockets.h"

namespace tutti::rpc {
namespace {

constexpr size_t kMostNameBytes = 100;
constexpr std::chrono::milliseconds kAcceptPause{5};

std::string random_name() {
  std::array<std::byte, 16> bytes;
  internal::fill_random(bytes);
  return "tutti-" + internal::to_hex(bytes);
}

// The name begins with a zero byte, which keeps it out of the file system.
socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), kMostNameBytes);
  std::memcpy(address->sun_path + 1, name.data(), size);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// A message of these bytes, with room for one descriptor.
struct DescriptorMessage {
  explicit DescriptorMessage(std::span<std::byte> content) : bytes{content.data(), content.size()} {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }

  iovec bytes;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

// A sender may attach more than it should; what arrived must be closed.
FileDescriptor only_descriptor(msghdr& header) {
  FileDescriptor only;
  size_t count = 0;
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= each->cmsg_len; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, reinterpret_cast<const char*>(each) + at, sizeof descriptor);
      only.reset(descriptor);
      ++count;
    }
  }
  if (count != 1 || (header.msg_flags & MSG_CTRUNC) != 0) only.reset();
  return only;
}

}  // namespace

LocalListener::LocalListener(int backlog)
    : name_(random_name()),
      socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_un address{};
  const socklen_t size = abstract_address(name_, &address);
  if (!socket_.is_open() || bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(socket_.get(), backlog) != 0) {
    throw Error(ErrorCode::kUnavailable,
                message("shared memory: a local socket cannot be created: ",
                        std::generic_category().message(errno), "."));
  }
}

FileDescriptor LocalListener::accept(const Deadline& deadline) const {
  while (internal::wait_for(socket_.get(), POLLIN, deadline)) {
    FileDescriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.is_open() && same_user(socket.get())) return socket;
    // Without descriptors left, the socket stays readable and accept4() keeps failing.
    if (deadline.passed()) break;
    if (!socket.is_open()) std::this_thread::sleep_for(kAcceptPause);
  }
  return {};
}

FileDescriptor connect_locally(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  const socklen_t size = abstract_address(name, &address);
  if (name.size() > kMostNameBytes || !socket.is_open() ||
      connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      !same_user(socket.get())) {
    return {};
  }
  return socket;
}

void send_descriptor(int socket, std::span<const std::byte> bytes, int descriptor) {
  // sendmsg() does not write to what msghdr points to.
  DescriptorMessage packet({const_cast<std::byte*>(bytes.data()), bytes.size()});
  cmsghdr* const rights = CMSG_FIRSTHDR(&packet.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  sendmsg(socket, &packet.header, MSG_NOSIGNAL);
}

FileDescriptor receive_descriptor(int socket, std::span<std::byte> bytes,
                                  const Deadline& deadline) {
  if (!internal::wait_for(socket, POLLIN, deadline)) return {};
  DescriptorMessage packet(bytes);
  const ssize_t received = recvmsg(socket, &packet.header, MSG_CMSG_CLOEXEC);
  if (received < 0) return {};
  FileDescriptor descriptor = only_descriptor(packet.header);
  if (static_cast<size_t>(received) != bytes.size()) return {};
  return descriptor;
}

}  // namespace tutti::rpc
