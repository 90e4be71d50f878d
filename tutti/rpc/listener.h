// SPDX-License-Identifier: Apache-2.0
//
// The part of a process that accepts connections: answers calls and receives streams. Every one is
// authenticated before anything it sends reaches a handler; see security.h. channel.h is the client
// side.

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

/// The caller, for messages. The address is that of the connection, not of the peer's listener.
struct Caller {
  std::string address;
};

/// Returns the response, or throws: an Error reaches the caller with its code and text, any other
/// exception as kInternal with its text. Runs on a thread of the listener and may block; at most
/// ListenerOptions::handler_threads handlers run at a time.
using UnaryHandler = std::function<std::string(const Caller& caller, std::string_view request)>;

/// A handle to send the response to one call later; the first response counts. If all copies are
/// destroyed without one, the caller gets kInternal. Thread-safe.
class Reply {
 public:
  class Slot;
  explicit Reply(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

  void answer(std::string_view response) const;
  void fail(const Error& error) const;
  /// True when the caller no longer waits: answered, cancelled, or gone.
  bool is_over() const;

 private:
  std::shared_ptr<Slot> slot_;
};

/// Like UnaryHandler, but it may return before the response is sent, so that no thread waits for
/// it.
using DeferredHandler =
    std::function<void(const Caller& caller, std::string_view request, Reply reply)>;

/// Receives one incoming stream. Calls never overlap. They are made on network threads and must not
/// block.
class StreamReceiver {
 public:
  virtual ~StreamReceiver() = default;
  /// Returns true to continue, or false to receive no further message until
  /// IncomingStream::resume(), which slows the sender down. An exception breaks the stream, and the
  /// sender gets its text.
  virtual bool on_message(Message message) = 0;
  /// Called exactly once, last. `why` is null when the sender closed the stream cleanly.
  virtual void on_closed(std::exception_ptr why) = 0;
};

/// The listener's handle of one incoming stream. Thread-safe; does nothing once the stream is
/// closed.
class IncomingStream {
 public:
  virtual ~IncomingStream() = default;
  /// Ends a pause. May be called even before on_message() returns false.
  virtual void resume() = 0;
  /// Breaks the stream: on_closed() follows with kCancelled.
  virtual void cancel() = 0;
};

/// Returns the receiver of a new stream, or throws to refuse it. `opening` is what the sender
/// passed to open_stream(). Must not block.
using StreamHandler = std::function<std::shared_ptr<StreamReceiver>(
    const Caller& caller, std::string_view opening, std::shared_ptr<IncomingStream> stream)>;

struct ListenerOptions {
  /// "host:port"; port 0 means any free port. An address other than loopback needs an explicit job
  /// secret or certificates.
  std::string address = "127.0.0.1:0";
  SecurityOptions security = {};
  size_t max_message_bytes = 16 << 20;  ///< per message of a stream
  size_t max_call_bytes = 4 << 20;      ///< per request
  /// At least 4 are admitted; fewer if the process may not open that many files.
  int max_connections = 1024;
  int handler_threads = 16;
  std::chrono::milliseconds handshake_timeout{5000};
  std::chrono::milliseconds keepalive_interval{2000};  ///< how often an idle peer is pinged
  std::chrono::milliseconds keepalive_timeout{5000};   ///< after which it counts as dead
};

/// Listens from its constructor to stop(). Thread-safe.
class Listener {
 public:
  /// Throws kUnavailable if it cannot listen on the address (the message says why),
  /// kFailedPrecondition if that is not loopback and there is neither secret nor certificate, and
  /// kInvalidArgument for bad options.
  explicit Listener(ListenerOptions options);
  ~Listener();

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const;
  /// The host as given, and the port that was chosen.
  std::string address() const;

  /// The last connection or call that was refused, and why: "a connection from 10.0.0.7:4321: it
  /// has a different job secret."; empty if there was none.
  std::string last_refusal() const;

  /// Sets or replaces the handler of `method`. Calls of methods without a handler fail with
  /// kUnimplemented.
  void handle(const std::string& method, UnaryHandler handler);
  void handle_deferred(const std::string& method, DeferredHandler handler);
  void handle_stream(const std::string& method, StreamHandler handler);

  /// Closes all connections and streams, answers waiting calls with kCancelled, and waits for
  /// running handlers. Must not be called from a handler or receiver. A second call does nothing.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::rpc
