// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/shared_memory/host_mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

namespace tutti::internal {
namespace {

// Sentinel in place of the name of a socket; no name begins with it.
const std::string kNoSegment = "!";
constexpr uint64_t kHelloMagic = 0x736567316d656e74;

std::string random_name() {
  uint64_t words[2] = {};
  if (getrandom(words, sizeof words, 0) != sizeof words) {
    throw Error(ErrorCode::kUnavailable, "shared memory: the system provides no random numbers.");
  }
  char text[48];
  std::snprintf(text, sizeof text, "tutti-%016llx%016llx",
                static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return text;
}

// Names that begin with a zero byte are not in the file system; they vanish with the socket, and
// exist once for each network namespace.
socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), std::min(name.size(), size_t{100}));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

std::string errno_text() { return std::strerror(errno); }

bool same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool wait_readable(int descriptor, const Deadline& deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.when() -
                                                                            Deadline::Clock::now());
    pollfd each{descriptor, POLLIN, 0};
    const int slice = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000));
    const int ready = poll(&each, 1, slice);
    if (ready > 0) return true;
    if (deadline.passed() || (ready < 0 && errno != EINTR)) return false;
  }
}

std::string table_text(const std::vector<bool>& table) {
  std::string text;
  for (const bool each : table) text += each ? '1' : '0';
  return text;
}

}  // namespace

struct HostMesh::Hello {
  uint64_t magic;
  uint64_t epoch;
  int64_t rank;
};

HostMesh::HostMesh(const Options& options)
    : options_(options),
      socket_name_(random_name()),
      sockets_(static_cast<size_t>(options.size), -1),
      peers_(sockets_.size()),
      segments_(sockets_.size()),
      reached_(sockets_.size()),
      reasons_(sockets_.size()) {
  try {
    segment_ =
        Segment::create(options.epoch, options.rank,
                        {options.lanes, static_cast<size_t>(options.size), options.segment_bytes});
    listen_locally();
  } catch (const Error& error) {
    segment_ = nullptr;
    problem_ = error.what();
    while (problem_.ends_with('.')) problem_.pop_back();  // it becomes a part of sentences
  }
}

void HostMesh::listen_locally() {
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un address{};
  const socklen_t size = abstract_address(socket_name_, &address);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, options_.size + 8) != 0) {
    const std::string reason = errno_text();
    throw Error(ErrorCode::kUnavailable,
                message("shared memory: a local socket cannot be created: ", reason, "."));
  }
}

HostMesh::~HostMesh() {
  if (segment_ != nullptr) {
    segment_->set_failure(Segment::State::kLeft, ErrorCode::kUnavailable, "");
  }
  for (const int each : sockets_) {
    if (each >= 0) close(each);
  }
  if (listener_ >= 0) close(listener_);
}

void HostMesh::connect(const GatherFn& gather, const Deadline& deadline) {
  const auto me = static_cast<size_t>(options_.rank);
  const std::vector<std::string> names =
      gather(segment_ != nullptr ? socket_name_ : kNoSegment + problem_);
  std::vector<bool> connected(names.size());
  for (size_t r = 0; r < names.size(); ++r) {
    if (segment_ == nullptr) reasons_[r] = "this rank has none: " + problem_;
    if (names[r].rfind(kNoSegment, 0) == 0 && r != me) {
      reasons_[r] = "it has none: " + names[r].substr(kNoSegment.size());
    }
    if (r >= me || !reasons_[r].empty()) continue;
    sockets_[r] = connect_to(names[r]);
    connected[r] = sockets_[r] >= 0;
    if (!connected[r]) reasons_[r] = "its local socket cannot be reached";
  }
  const std::vector<std::string> tables = gather(table_text(connected));
  std::vector<bool> expected(names.size());
  for (size_t r = me + 1; r < names.size(); ++r) {
    expected[r] = me < tables[r].size() && tables[r][me] == '1';
    if (!expected[r] && reasons_[r].empty())
      reasons_[r] = "it cannot reach the local socket of this rank";
  }
  accept_from(expected, deadline);
  for (size_t r = 0; r < me; ++r) {
    if (connected[r]) receive_segment(sockets_[r], static_cast<int>(r), deadline);
  }
  std::vector<bool> mapped(names.size());
  for (size_t r = 0; r < names.size(); ++r) mapped[r] = segments_[r] != nullptr;
  const std::vector<std::string> results = gather(table_text(mapped));
  for (size_t r = 0; r < names.size(); ++r) {
    const bool theirs = me < results[r].size() && results[r][me] == '1';
    reached_[r] = mapped[r] && theirs;
    if (mapped[r] && !theirs && r != me) reasons_[r] = "it cannot map the memory of this rank";
    if (reached_[r]) peers_[r] = std::make_shared<PeerSocket>(std::exchange(sockets_[r], -1));
  }
  if (listener_ >= 0) close(std::exchange(listener_, -1));
}

int HostMesh::connect_to(const std::string& name) const {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  sockaddr_un address{};
  const socklen_t size = abstract_address(name, &address);
  if (name.size() > 100 || ::connect(socket, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      !same_user(socket)) {
    close(socket);
    return -1;
  }
  send_segment(socket);
  return socket;
}

// Failures here show at the other end, or as a closed socket.
void HostMesh::send_segment(int socket) const {
  Hello hello{kHelloMagic, options_.epoch, options_.rank};
  iovec bytes{&hello, sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = segment_->descriptor();
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  sendmsg(socket, &header, MSG_NOSIGNAL);
}

int HostMesh::receive_descriptor(int socket, int* rank, const Deadline& deadline) const {
  if (!wait_readable(socket, deadline)) return -1;
  Hello hello{};
  iovec bytes{&hello, sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const rights = received > 0 ? CMSG_FIRSTHDR(&header) : nullptr;
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(sizeof(int))) {
    return -1;
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
  if (received != sizeof hello || hello.magic != kHelloMagic || hello.epoch != options_.epoch ||
      hello.rank < 0 || hello.rank >= options_.size) {
    close(descriptor);
    return -1;
  }
  *rank = static_cast<int>(hello.rank);
  return descriptor;
}

void HostMesh::receive_segment(int socket, int rank, const Deadline& deadline) {
  int sender = -1;
  const int descriptor = receive_descriptor(socket, &sender, deadline);
  if (descriptor >= 0 && sender == rank) {
    map_segment(descriptor, rank);
  } else {
    reasons_[static_cast<size_t>(rank)] = "it did not send its segment";
  }
  if (descriptor >= 0) close(descriptor);
}

void HostMesh::map_segment(int descriptor, int rank) {
  try {
    segments_[static_cast<size_t>(rank)] =
        Segment::attach(descriptor, options_.epoch, rank, segment_->layout());
  } catch (const Error& error) {
    reasons_[static_cast<size_t>(rank)] = error.what();
  }
}

// Unrelated processes may connect too, but they do not know the epoch.
void HostMesh::accept_from(const std::vector<bool>& expected, const Deadline& deadline) {
  auto left = std::count(expected.begin(), expected.end(), true);
  while (left > 0 && wait_readable(listener_, deadline)) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    int rank = -1;
    const int descriptor = same_user(socket) ? receive_descriptor(socket, &rank, deadline) : -1;
    const auto index = static_cast<size_t>(rank);
    if (descriptor < 0 || !expected[index] || sockets_[index] >= 0) {
      if (descriptor >= 0) close(descriptor);
      close(socket);
      continue;
    }
    map_segment(descriptor, rank);
    close(descriptor);
    send_segment(socket);
    sockets_[index] = socket;
    --left;
  }
}

std::unique_ptr<Link> HostMesh::make_link(size_t lane, int rank) const {
  const auto index = static_cast<size_t>(rank);
  return std::make_unique<HostLink>(segment_, segments_[index], lane, options_.rank, rank,
                                    peers_[index]);
}

}  // namespace tutti::internal
