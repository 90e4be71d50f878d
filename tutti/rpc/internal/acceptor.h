// SPDX-License-Identifier: Apache-2.0
//
// Accepts connections and admits only those that have proved the job secret (or, where gRPC does
// TLS, those that begin it). gRPC's own listener stops for good when a process runs out of file
// descriptors; this one does not.

#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/thread.h"
#include "tutti/rpc/internal/handshake.h"
#include "tutti/rpc/internal/limited_log.h"
#include "tutti/rpc/internal/sockets.h"

namespace tutti::rpc::internal {

struct AcceptorOptions {
  std::string address;  ///< for the log
  std::string secret;
  bool tls = false;
  size_t max_connections = 1024;
  std::chrono::milliseconds handshake_timeout{5000};
  /// Called with "a connection from 10.0.0.7:4321: it has ..." for each refused connection, on the
  /// acceptor's thread.
  std::function<void(const std::string& text)> on_refusal = {};
};

/// A dedicated thread waits on all sockets at once, so a slow or silent peer delays no other. The
/// thread lives from the constructor to the destructor; there are no other public calls.
class Acceptor {
 public:
  /// `admit` receives each admitted socket, and owns it.
  Acceptor(FileDescriptor listener, AcceptorOptions options, std::function<void(int fd)> admit);
  ~Acceptor();

 private:
  struct Guest {
    FileDescriptor fd;
    Deadline deadline;
    ListenerHandshake handshake;
    bool undecided;  ///< may still turn out to speak TLS
    FrameBytes frame = {};
    size_t received = 0;
    std::string reason = {};  ///< why it is dropped; empty when the peer closed
  };
  using Guests = std::list<Guest>;
  struct Admitted {
    int fd;
    ino_t inode;
  };

  enum class Fate { kStays, kEnters, kLeaves };

  void run();
  void watch(int operation, int fd);
  void accept_some();
  bool make_room(int error);
  void welcome(FileDescriptor fd);
  void proceed(int fd);
  Fate listen_to(Guest& guest);
  Fate decide_tls(Guest& guest);
  Fate on_frame(Guest& guest);
  void let_in(Guests::iterator guest);
  void drop(Guests::iterator guest);
  void expire();
  bool is_full();
  int wait_milliseconds() const;

  FileDescriptor listener_;
  const AcceptorOptions options_;
  const std::function<void(int)> admit_;
  size_t max_guests_;
  size_t max_connections_;
  FileDescriptor epoll_;
  FileDescriptor wake_;
  FileDescriptor reserve_;  ///< released briefly when no descriptors are left
  Guests guests_;           ///< oldest first
  std::unordered_map<int, Guests::iterator> by_fd_;
  std::vector<Admitted> admitted_;
  Deadline paused_until_ = Deadline::forever();
  bool paused_ = false;
  LimitedLog log_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::rpc::internal
