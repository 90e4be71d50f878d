// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <system_error>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"

namespace tutti::rpc::internal {
namespace {

std::string error_text(int code) { return std::generic_category().message(code); }

/// A lookup that can be abandoned: getaddrinfo cannot, so it runs on a dedicated thread.
struct Lookup {
  Lookup(std::string name, std::string service, const addrinfo& wanted)
      : host(std::move(name)), port(std::move(service)), hints(wanted) {
    thread.emplace("tutti/resolve", [this] {
      code = getaddrinfo(host.c_str(), port.c_str(), &hints, &result);
      done.bump();
    });
  }
  ~Lookup() {
    thread.reset();
    if (result != nullptr) freeaddrinfo(result);
  }

  const std::string host;
  const std::string port;
  const addrinfo hints;
  addrinfo* result = nullptr;
  int code = 0;
  WaitWord done;
  std::optional<Thread> thread;
};

/// Keeps abandoned lookups until they end, so that no caller waits for their threads.
void keep_until_done(std::unique_ptr<Lookup> lookup) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Lookup>>();
  MutexLock lock(mutex);
  std::erase_if(*kept, [](const auto& old) { return old->done.load() != 0; });
  kept->push_back(std::move(lookup));
}

timespec remaining_time(Deadline deadline) {
  using namespace std::chrono;
  if (deadline.when() == Deadline::Clock::time_point::max()) return {3600, 0};
  const auto left = std::max<nanoseconds>(deadline.when() - Deadline::Clock::now(), nanoseconds(0));
  const auto whole = duration_cast<seconds>(left);
  return {static_cast<time_t>(whole.count()), static_cast<long>((left - whole).count())};
}

std::vector<SocketAddress> to_list(const addrinfo* found) {
  std::vector<SocketAddress> list;
  for (; found != nullptr; found = found->ai_next) {
    SocketAddress address;
    address.size = std::min<socklen_t>(found->ai_addrlen, sizeof address.storage);
    std::memcpy(&address.storage, found->ai_addr, address.size);
    list.push_back(address);
  }
  return list;
}

[[noreturn]] void fail_listen(const Address& address, int code) {
  std::string advice = "Choose an address of this machine.";
  if (code == EADDRINUSE) {
    advice =
        "Another process listens there, perhaps one with the same task of the cluster. Stop it, or "
        "choose a different port (0 for any free one).";
  } else if (code == EACCES) {
    advice = "Ports below 1024 require privileges.";
  }
  throw Error(ErrorCode::kUnavailable,
              message("rpc::Listener: cannot listen on ", address.to_string(), ": ",
                      error_text(code), ". ", advice));
}

}  // namespace

Address split_address(const char* who, const std::string& address) {
  try {
    return parse_address(address, PortZero::kAllowed);
  } catch (const Error& error) {
    throw Error(error.code(), message(who, ": ", error.what()));
  }
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  const int code = getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, text, sizeof text,
                               nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text : "";
}

std::string SocketAddress::to_string() const {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int code = getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host,
                               port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  if (code != 0) return "an unknown address";
  return Address{host, std::atoi(port)}.to_string();
}

std::vector<SocketAddress> resolve(const Address& address, Deadline deadline) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  const std::string port = std::to_string(address.port);
  addrinfo* numeric = nullptr;
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &numeric) == 0) {
    auto list = to_list(numeric);
    freeaddrinfo(numeric);
    return list;
  }
  hints.ai_flags = AI_NUMERICSERV;
  auto lookup = std::make_unique<Lookup>(address.host, port, hints);
  const bool ended = lookup->done.park(0, deadline);
  const int code = ended ? lookup->code : EAI_AGAIN;
  if (code == 0) return to_list(lookup->result);
  if (!ended) keep_until_done(std::move(lookup));
  throw Error(
      ErrorCode::kUnavailable,
      message("cannot resolve the name \"", printable(address.host), "\": ", gai_strerror(code)));
}

FileDescriptor listen_on(const Address& address) {
  int code = EADDRNOTAVAIL;
  std::vector<SocketAddress> candidates;
  try {
    candidates = resolve(address, Deadline::after(std::chrono::seconds(10)));
  } catch (const Error& error) {
    throw Error(error.code(), message("rpc::Listener: cannot listen on ", address.to_string(), ": ",
                                      error.what(), "."));
  }
  for (const SocketAddress& candidate : candidates) {
    FileDescriptor fd(
        socket(candidate.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // Addresses are reused, but not ports: a restarted process gets its port back immediately, and
    // two processes never share one.
    const int on = 1;
    if (fd.is_open() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd.get(), reinterpret_cast<const sockaddr*>(&candidate.storage), candidate.size) ==
            0 &&
        listen(fd.get(), SOMAXCONN) == 0) {
      return fd;
    }
    code = errno;
  }
  fail_listen(address, code);
}

int local_port(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  TUTTI_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) == 0);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
  return ntohs(address.storage.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

std::string peer_of(int fd) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) {
    return "an unknown address";
  }
  return address.to_string();
}

FileDescriptor connect_to(const SocketAddress& address, Deadline deadline) {
  FileDescriptor fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::kUnavailable, message(address.to_string(), ": ", why));
  };
  if (!fd.is_open()) fail(error_text(errno));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(fd.get(), to, address.size) != 0 && errno != EINPROGRESS) fail(error_text(errno));
  if (!wait_for(fd.get(), POLLOUT, deadline)) fail("no response");
  int code = 0;
  socklen_t size = sizeof code;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &size);
  if (code != 0) fail(error_text(code));
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

bool wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry = {fd, events, 0};
    const timespec wait = remaining_time(deadline);
    if (ppoll(&entry, 1, &wait, nullptr) > 0) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace tutti::rpc::internal
