// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/base/log.h"

namespace tutti::rpc::internal {
namespace {

constexpr int kAcceptsPerTurn = 32;
constexpr size_t kMaxGuests = 256;
constexpr std::chrono::milliseconds kPause(20);
constexpr std::byte kTlsHandshakeRecord{0x16};

size_t descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1 << 20;
  return limit.rlim_cur;
}

FileDescriptor open_reserve() { return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

ino_t inode_of(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

}  // namespace

Acceptor::Acceptor(FileDescriptor listener, AcceptorOptions options,
                   std::function<void(int fd)> admit)
    : listener_(std::move(listener)),
      options_(std::move(options)),
      admit_(std::move(admit)),
      // The process needs descriptors for other purposes too.
      max_guests_(std::clamp<size_t>(descriptor_limit() / 4, 4, kMaxGuests)),
      max_connections_(std::clamp<size_t>(descriptor_limit() / 2, 4,
                                          std::max<size_t>(options_.max_connections, 4))),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      reserve_(open_reserve()) {
  if (!epoll_.is_open() || !wake_.is_open() || !reserve_.is_open()) {
    throw Error(ErrorCode::kUnavailable,
                "rpc::Listener: out of file descriptors. Raise the limit (ulimit -n).");
  }
  watch(EPOLL_CTL_ADD, listener_.get());
  watch(EPOLL_CTL_ADD, wake_.get());
  thread_ = std::make_unique<Thread>("tutti/accept", [this] { run(); });
}

Acceptor::~Acceptor() {
  stopping_ = true;
  const uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.reset();
}

void Acceptor::watch(int operation, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  epoll_ctl(epoll_.get(), operation, fd, &event);
}

void Acceptor::run() {
  std::array<epoll_event, 64> events;
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 wait_milliseconds());
    bool knock = false;
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        knock = true;
      } else if (fd != wake_.get()) {
        proceed(fd);
      }
    }
    expire();
    if (knock && !stopping_) accept_some();
    if (paused_ && paused_until_.passed()) {
      paused_ = false;
      watch(EPOLL_CTL_ADD, listener_.get());
    }
  }
}

int Acceptor::wait_milliseconds() const {
  auto next = Deadline::Clock::time_point::max();
  if (!guests_.empty()) next = guests_.front().deadline.when();
  if (paused_) next = std::min(next, paused_until_.when());
  if (next == Deadline::Clock::time_point::max()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(next - Deadline::Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 60000));
}

void Acceptor::accept_some() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.is_open()) {
      welcome(std::move(fd));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!make_room(errno)) return;
    }
    // Any other error concerns only that connection, which is gone.
  }
}

/// Called when no descriptors are left: drops the oldest guest, or the newcomer if there are no
/// guests. If even that fails, accepts nothing for a moment.
bool Acceptor::make_room(int error) {
  if (!guests_.empty()) {
    guests_.front().reason = "the listener is out of file descriptors";
    drop(guests_.begin());
    return true;
  }
  log_.warn(message("rpc: listener ", options_.address, " is out of file descriptors (error ",
                    error, ") and refuses a connection. Raise the limit (ulimit -n)."));
  reserve_.reset();
  FileDescriptor victim(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const bool shed = victim.is_open();
  victim.reset();
  reserve_ = open_reserve();
  if (shed && reserve_.is_open()) return true;
  paused_ = true;
  paused_until_ = Deadline::after(kPause);
  watch(EPOLL_CTL_DEL, listener_.get());
  return false;
}

void Acceptor::welcome(FileDescriptor fd) {
  if (guests_.size() >= max_guests_) {
    // The oldest has had the most time: an honest peer needs a few milliseconds.
    guests_.front().reason = "it was slow while many others connected";
    drop(guests_.begin());
  }
  const int number = fd.get();
  auto refusal = FrameStatus::kOk;
  if (is_full()) refusal = FrameStatus::kTooManyConnections;
  if (options_.tls) refusal = FrameStatus::kNeedsTls;
  guests_.push_back({std::move(fd), Deadline::after(options_.handshake_timeout),
                     ListenerHandshake(options_.secret, refusal), options_.tls});
  by_fd_[number] = std::prev(guests_.end());
  watch(EPOLL_CTL_ADD, number);
  proceed(number);
}

void Acceptor::proceed(int fd) {
  const auto found = by_fd_.find(fd);
  if (found == by_fd_.end()) return;
  const auto guest = found->second;
  switch (listen_to(*guest)) {
    case Fate::kStays:
      return;
    case Fate::kEnters:
      return let_in(guest);
    case Fate::kLeaves:
      return drop(guest);
  }
}

Acceptor::Fate Acceptor::listen_to(Guest& guest) {
  if (guest.undecided) {
    const Fate fate = decide_tls(guest);
    if (fate != Fate::kStays || guest.undecided) return fate;
  }
  while (true) {
    const ssize_t count = recv(guest.fd.get(), guest.frame.data() + guest.received,
                               kFrameBytes - guest.received, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Fate::kStays;
    if (count <= 0) return Fate::kLeaves;
    guest.received += static_cast<size_t>(count);
    if (!may_begin_frame(std::span(guest.frame).first(guest.received))) {
      guest.reason = guest.frame[0] == kTlsHandshakeRecord
                         ? "it speaks TLS, for which this listener has no certificates"
                         : "it does not speak this protocol";
      return Fate::kLeaves;
    }
    if (guest.received < kFrameBytes) continue;
    guest.received = 0;
    if (const Fate fate = on_frame(guest); fate != Fate::kStays) return fate;
  }
}

/// TLS is left to gRPC, so its first byte is only peeked at. A client that begins with something
/// else gets a response that says what is missing.
Acceptor::Fate Acceptor::decide_tls(Guest& guest) {
  std::byte first{};
  const ssize_t count = recv(guest.fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Fate::kStays;
  if (count <= 0) return Fate::kLeaves;
  if (first != kTlsHandshakeRecord) {
    guest.undecided = false;
    return Fate::kStays;
  }
  if (!is_full()) return Fate::kEnters;
  guest.reason = "there are too many connections";
  return Fate::kLeaves;
}

Acceptor::Fate Acceptor::on_frame(Guest& guest) {
  const auto answer = guest.handshake.on_frame(guest.frame);
  if (answer) {
    const ssize_t count =
        send(guest.fd.get(), answer->data(), answer->size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count != static_cast<ssize_t>(answer->size())) return Fate::kLeaves;
  }
  if (guest.handshake.state() == ListenerHandshake::State::kRunning) return Fate::kStays;
  if (guest.handshake.state() == ListenerHandshake::State::kAccepted) return Fate::kEnters;
  guest.reason = guest.handshake.reason();
  return Fate::kLeaves;
}

void Acceptor::let_in(Guests::iterator guest) {
  const int fd = guest->fd.release();
  watch(EPOLL_CTL_DEL, fd);
  by_fd_.erase(fd);
  guests_.erase(guest);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  admitted_.push_back({fd, inode_of(fd)});
  admit_(fd);
}

void Acceptor::drop(Guests::iterator guest) {
  if (!guest->reason.empty()) {
    const std::string text =
        message("a connection from ", peer_of(guest->fd.get()), ": ", guest->reason, ".");
    log_.warn(message("rpc: listener ", options_.address, " refused ", text));
    if (options_.on_refusal) options_.on_refusal(text);
  }
  by_fd_.erase(guest->fd.get());
  guests_.erase(guest);
}

void Acceptor::expire() {
  while (!guests_.empty() && guests_.front().deadline.passed()) {
    guests_.front().reason = message("it did not prove the job secret within ",
                                     options_.handshake_timeout.count(), " ms");
    drop(guests_.begin());
  }
}

/// gRPC does not report when it closes a socket, but a closed or reused descriptor has a different
/// inode.
bool Acceptor::is_full() {
  if (admitted_.size() < max_connections_) return false;
  std::erase_if(admitted_, [](const Admitted& old) { return inode_of(old.fd) != old.inode; });
  return admitted_.size() >= max_connections_;
}

}  // namespace tutti::rpc::internal
