// SPDX-License-Identifier: Apache-2.0
//
// The listening side of a process: answers calls and receives streams. Every connection is
// authenticated before anything it sends reaches a handler; see security.h. channel.h is the
// other side.

#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "tutti/base/error.h"
#include "tutti/rpc/message.h"
#include "tutti/rpc/security.h"

namespace tutti::rpc {

/// Who called, for messages. The address is that of the connection, not of the peer's server.
struct Caller {
  std::string address;
};

/// Returns the answer, or throws: an Error reaches the caller with its code and text, another
/// exception as kInternal with its text. Runs on a thread of the server and may block; at most
/// ServerOptions::handler_threads handlers run at a time.
using UnaryHandler = std::function<std::string(const Caller& caller, std::string_view request)>;

/// The answer to one call, to be given later; the first answer counts. When all copies are gone
/// without one, the caller gets kInternal. Thread-safe.
class Reply {
 public:
  class Slot;
  explicit Reply(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

  void answer(std::string_view response) const;
  void fail(const Error& error) const;
  /// True when nobody waits any more: answered, cancelled, or the caller is gone.
  bool is_over() const;

 private:
  std::shared_ptr<Slot> slot_;
};

/// As UnaryHandler, but the answer may come after it has returned; then no thread waits for it.
using DeferredHandler =
    std::function<void(const Caller& caller, std::string_view request, Reply reply)>;

/// What becomes of one incoming stream. Calls never overlap. They come from threads of the network
/// and must not block.
class StreamReceiver {
 public:
  virtual ~StreamReceiver() = default;
  /// True: go on. False: no further message until IncomingStream::resume(); the sender is slowed
  /// down. What it throws breaks the stream, and the sender gets the text.
  virtual bool on_message(Message message) = 0;
  /// Exactly once, last. Null when the sender closed the stream in order.
  virtual void on_closed(std::exception_ptr why) = 0;
};

/// The server's handle of one incoming stream. Thread-safe; does nothing once the stream is closed.
class IncomingStream {
 public:
  virtual ~IncomingStream() = default;
  /// Ends a pause. Also right while on_message() is still about to return false.
  virtual void resume() = 0;
  /// Breaks the stream: on_closed() follows with kCancelled.
  virtual void cancel() = 0;
};

/// Returns the receiver of a new stream, or throws to refuse it. `opening` is what the sender gave
/// to open_stream(). Must not block.
using StreamHandler = std::function<std::shared_ptr<StreamReceiver>(
    const Caller& caller, std::string_view opening, std::shared_ptr<IncomingStream> stream)>;

struct ServerOptions {
  /// "host:port"; port 0 means any free one. Other than loopback needs a job secret or
  /// certificates that were given, not made up.
  std::string address = "127.0.0.1:0";
  SecurityOptions security = {};
  size_t max_message_bytes = 16 << 20;  ///< of one message of a stream
  size_t max_call_bytes = 4 << 20;      ///< of a request
  int max_connections = 1024;           ///< lower if the process may not open as many files
  int handler_threads = 16;
  std::chrono::milliseconds handshake_timeout{5000};
  std::chrono::milliseconds keepalive_interval{2000};  ///< how often a silent peer is asked
  std::chrono::milliseconds keepalive_timeout{5000};   ///< after which it counts as gone
};

/// Listens from its constructor to stop(). Thread-safe.
class Server {
 public:
  /// kUnavailable if the address cannot be had (the message says why); kFailedPrecondition if it is
  /// not loopback and there is neither secret nor certificate; kInvalidArgument for bad options.
  explicit Server(ServerOptions options);
  ~Server();

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// The host as given, and the port that was chosen.
  std::string address() const;

  /// The last connection or call that was turned away for what it is, and why: "a connection from
  /// 10.0.0.7:4321: it has another job secret."; empty if there was none.
  std::string last_refusal() const;

  /// Sets, or replaces, what answers `method`. Calls of methods without handler fail with
  /// kUnimplemented.
  void handle(const std::string& method, UnaryHandler handler);
  void handle_deferred(const std::string& method, DeferredHandler handler);
  void handle_stream(const std::string& method, StreamHandler handler);

  /// Closes all connections and streams, answers waiting calls with kCancelled, and waits for
  /// handlers that run. Not from a handler or receiver. A second call does nothing.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc
