// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/client_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>

#include "tutti/base/backoff.h"
#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/base/log.h"
#include "tutti/rpc/internal/grpc_bytes.h"
#include "tutti/rpc/internal/handshake.h"

namespace tutti::rpc::internal {
namespace {

constexpr std::chrono::seconds kAttempt(5);
constexpr std::chrono::milliseconds kFirstPause(20);
constexpr std::chrono::milliseconds kLongestPause(500);
constexpr std::chrono::seconds kLogEvery(3);
constexpr int kTlsFailures = 3;

void send_frame(int fd, const FrameBytes& frame) {
  const ssize_t count = send(fd, frame.data(), frame.size(), MSG_NOSIGNAL);
  if (count != static_cast<ssize_t>(frame.size())) {
    throw Error(ErrorCode::kUnavailable, "the connection was closed during the handshake");
  }
}

FrameBytes receive_frame(int fd, Deadline deadline) {
  FrameBytes frame = {};
  size_t received = 0;
  while (received < frame.size()) {
    if (!wait_for(fd, POLLIN, deadline)) {
      throw Error(ErrorCode::kUnavailable, "no response to the handshake");
    }
    const ssize_t count = recv(fd, frame.data() + received, frame.size() - received, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) {
      throw Error(ErrorCode::kUnavailable, "the connection was closed during the handshake");
    }
    received += static_cast<size_t>(count);
    // Another program may send less than a frame and wait: the first bytes already tell.
    if (!may_begin_frame(std::span(frame).first(received))) break;
  }
  return frame;
}

FileDescriptor connect_any(const Address& address, Deadline deadline) {
  std::vector<std::string> reasons;
  for (const SocketAddress& candidate : resolve(address, deadline)) {
    try {
      return connect_to(candidate, deadline);
    } catch (const Error& error) {
      reasons.emplace_back(error.what());
    }
  }
  throw Error(ErrorCode::kUnavailable, joined(reasons, "; "));
}

/// Makes one attempt. After kUnavailable another one may succeed.
FileDescriptor connect_and_prove(const Address& address, const JobSecret& secret,
                                 Deadline deadline) {
  FileDescriptor fd = connect_any(address, deadline);
  ClientHandshake handshake(address.to_string(), secret.value, secret.source);
  send_frame(fd.get(), handshake.hello());
  send_frame(fd.get(), handshake.on_challenge(receive_frame(fd.get(), deadline)));
  handshake.on_verdict(receive_frame(fd.get(), deadline));
  return fd;
}

/// Reports that this process waits, and why.
class WaitingLog {
 public:
  WaitingLog(std::string address, const ChannelOptions& options)
      : address_(std::move(address)), options_(options) {}

  void waiting(const std::string& why) {
    if (options_.on_waiting) return options_.on_waiting(why);
    const auto now = Deadline::Clock::now();
    if (now < next_) return;
    next_ = now + kLogEvery;
    log(LogLevel::kInfo, message("rpc: waiting for ", address_, " (", why, ")"));
  }

 private:
  std::string address_;
  const ChannelOptions& options_;
  Deadline::Clock::time_point next_ = Deadline::Clock::now() + kLogEvery;
};

/// Calls `attempt` until it succeeds, fails for good, or the deadline passes.
template <class Attempt>
auto try_until(const Address& address, const ChannelOptions& options, Deadline deadline,
               const Attempt& attempt) {
  const auto begin = Deadline::Clock::now();
  WaitingLog waiting(address.to_string(), options);
  Backoff backoff(kFirstPause, kLongestPause);
  while (true) {
    std::string why;
    try {
      return attempt(earlier(deadline, Deadline::after(kAttempt)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      why = error.what();
    }
    if (!backoff.ends_before(deadline)) {
      const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
      throw Error(
          ErrorCode::kUnavailable,
          message("rpc: could not connect to ", address.to_string(), " within ", took.count(),
                  " s: ", why, ". Is that process running, and is the address right?"));
    }
    waiting.waiting(why);
    backoff.sleep();
  }
}

grpc::ChannelArguments client_arguments(const ChannelOptions& options) {
  return transport_arguments({.max_message_bytes = options.max_message_bytes,
                              .keepalive_interval = options.keepalive_interval,
                              .keepalive_timeout = options.keepalive_timeout});
}

Connection open_plain(const Address& address, const ClientIdentity& identity,
                      const ChannelOptions& options, Deadline deadline) {
  FileDescriptor fd = try_until(address, options, deadline, [&](Deadline attempt) {
    return connect_and_prove(address, identity.secret, attempt);
  });
  Connection connection;
  connection.socket.reset(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!connection.socket.is_open()) {
    throw Error(ErrorCode::kUnavailable,
                "rpc: out of file descriptors. Raise the limit (ulimit -n).");
  }
  connection.channel = grpc::CreateCustomInsecureChannelFromFd(address.to_string(), fd.release(),
                                                               client_arguments(options));
  return connection;
}

/// TLS fails in the same way whether the peer is busy or rejects us; a few attempts tell which.
class TlsAttempts {
 public:
  TlsAttempts(const Address& address, const ClientIdentity& identity, const ChannelOptions& options)
      : address_(address), identity_(identity), args_(client_arguments(options)) {
    args_.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  }

  std::shared_ptr<grpc::Channel> attempt(Deadline deadline) {
    // A plain connection distinguishes unknown names and refused connections better than gRPC does.
    connect_any(address_, deadline).reset();
    auto channel = grpc::CreateCustomChannel(address_.to_string(), identity_.credentials, args_);
    const grpc::Status status = greet(*channel, deadline);
    switch (status.error_code()) {
      case grpc::StatusCode::OK:
      case grpc::StatusCode::UNIMPLEMENTED:
        return channel;
      case grpc::StatusCode::UNAUTHENTICATED:
        throw Error(
            ErrorCode::kFailedPrecondition,
            message("rpc: ", address_.to_string(),
                    " refuses this process: the job secrets differ. This process ",
                    identity_.secret.value.empty() ? "has none"
                                                   : "has the one from " + identity_.secret.source,
                    "; give all processes of the job the same one."));
      default:
        break;
    }
    const bool enough = ++failures_ >= kTlsFailures;
    throw Error(
        enough ? ErrorCode::kFailedPrecondition : ErrorCode::kUnavailable,
        message("rpc: no TLS connection to ", address_.to_string(), ": ",
                printable(status.error_message()),
                ". Does the peer use TLS, is each certificate signed by the other's CA, and does "
                "the peer's certificate name this host?"));
  }

 private:
  /// Any call shows whether the peer accepts this process; this one has no handler.
  grpc::Status greet(grpc::Channel& channel, Deadline deadline) {
    grpc::ClientContext context;
    set_call_deadline(context, deadline);
    const std::string method = std::string(kMethodPrefix) + "rpc.hello";
    if (!identity_.secret.value.empty()) {
      context.AddMetadata(kTokenHeader, call_token(identity_.secret.value, method));
    }
    const grpc::ByteBuffer out = to_buffer("");
    grpc::ByteBuffer in;
    return blocking_call(channel, context, method, out, in);
  }

  const Address& address_;
  const ClientIdentity& identity_;
  grpc::ChannelArguments args_;
  int failures_ = 0;
};

Connection open_tls(const Address& address, const ClientIdentity& identity,
                    const ChannelOptions& options, Deadline deadline) {
  TlsAttempts attempts(address, identity, options);
  Connection connection;
  connection.channel = try_until(address, options, deadline,
                                 [&](Deadline attempt) { return attempts.attempt(attempt); });
  connection.call_secret = identity.secret.value;
  return connection;
}

}  // namespace

Connection open_connection(const std::string& address, const ChannelOptions& options,
                           Deadline deadline) {
  const Address parts = split_address("rpc::Channel", address);
  const ClientIdentity identity = make_client_identity(options.security, address);
  return identity.tls ? open_tls(parts, identity, options, deadline)
                      : open_plain(parts, identity, options, deadline);
}

}  // namespace tutti::rpc::internal
