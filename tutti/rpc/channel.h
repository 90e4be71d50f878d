// SPDX-License-Identifier: Apache-2.0
//
// The client side: a connection to one peer's Listener, calls, and streams of messages. A broken
// connection stays broken; connect again. (With TLS gRPC may reconnect by itself.)

#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/rpc/security.h"

namespace tutti::rpc {

struct ChannelOptions {
  SecurityOptions security = {};
  size_t max_message_bytes = 16 << 20;  ///< per message, in either direction
  std::chrono::milliseconds keepalive_interval{2000};
  std::chrono::milliseconds keepalive_timeout{5000};
  /// Called by connect() after every failed attempt, with the reason; an exception ends connect().
  /// If empty, connect() logs a line every three seconds.
  std::function<void(const std::string& why)> on_waiting = {};
};

/// An outgoing stream of messages. Thread-safe.
class SendStream {
 public:
  /// Cancels the stream unless it was closed; on_broken is not called after this.
  virtual ~SendStream() = default;

  /// Sends header and body as one message. The header is copied; `body` is not: it must stay
  /// unchanged until `sent` has been called, which happens exactly once, on any thread. True means
  /// that the bytes were handed to the network and are no longer referenced (not that the peer has
  /// them); false means that the stream is broken, cancelled or closed. Several messages may be in
  /// flight; they arrive in order. `sent` must not block or throw; it may call send(). Throws
  /// kInvalidArgument if the message is empty or larger than max_message_bytes.
  virtual void send(std::span<const std::byte> header, std::span<const std::byte> body,
                    std::function<void(bool)> sent) = 0;
  /// Ends the stream cleanly, after all messages sent so far. Further sends fail.
  virtual void close() = 0;
  /// Abandons the stream. The memory of messages in flight is released when the network no longer
  /// references it: immediately, or when the peer has read it or is found dead. Channel::abort() is
  /// faster.
  virtual void cancel() = 0;
};

/// One authenticated connection. Thread-safe.
class Channel {
 public:
  /// Connects to "host:port". Retries until the deadline while the name does not resolve or nothing
  /// listens there, then throws kUnavailable. Throws kFailedPrecondition immediately if the peer
  /// does not share the job secret or speaks another protocol.
  static std::shared_ptr<Channel> connect(const std::string& address, const ChannelOptions& options,
                                          Deadline deadline);
  ~Channel();

  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const std::string& address() const;

  /// Calls a method and waits for the response. Throws kUnavailable when the connection is broken,
  /// kDeadlineExceeded, kUnimplemented when the peer has no such method, or the handler's own code
  /// and text.
  std::string call(const std::string& method, std::string_view request, Deadline deadline);

  /// Opens a stream; does not wait for the peer. `on_broken` is called at most once, on any thread,
  /// when the stream ends other than by close(), cancel() or destruction. It must neither block nor
  /// destroy the stream.
  std::unique_ptr<SendStream> open_stream(const std::string& method, std::string_view opening,
                                          std::function<void(std::exception_ptr)> on_broken);

  /// Ends all calls and streams immediately, and calls `sent`. Without TLS the socket is closed
  /// too.
  void abort();

 private:
  class Impl;
  explicit Channel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc
