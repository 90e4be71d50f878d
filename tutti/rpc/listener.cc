// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/listener.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "tutti/rpc/internal/acceptor.h"
#include "tutti/rpc/internal/callback_threads.h"
#include "tutti/rpc/internal/credentials.h"
#include "tutti/rpc/internal/grpc_bytes.h"
#include "tutti/rpc/internal/handover.h"
#include "tutti/rpc/internal/incoming_call.h"
#include "tutti/rpc/internal/incoming_stream.h"
#include "tutti/rpc/internal/listener_core.h"

namespace tutti::rpc {
namespace {

using internal::ListenerCore;

void check_listener_options(const ListenerOptions& options) {
  const auto fail = [](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, message("rpc::Listener: ", what));
  };
  if (options.max_message_bytes < 1024 || options.max_message_bytes > (size_t{1} << 30)) {
    fail(message("max_message_bytes is ", options.max_message_bytes,
                 "; it must be from 1 KB to 1 GB."));
  }
  if (options.max_call_bytes > options.max_message_bytes) {
    fail(message("max_call_bytes is ", options.max_call_bytes, ", more than max_message_bytes, ",
                 options.max_message_bytes, "."));
  }
  if (options.max_connections < 1) fail("max_connections must be at least 1.");
  if (options.handler_threads < 1) fail("handler_threads must be at least 1.");
  if (options.handshake_timeout.count() < 1 || options.keepalive_interval.count() < 1 ||
      options.keepalive_timeout.count() < 1) {
    fail("handshake_timeout, keepalive_interval and keepalive_timeout must be at least 1 ms.");
  }
}

void check_method(const std::string& method) {
  const bool good = !method.empty() && method.size() <= 200 &&
                    std::all_of(method.begin(), method.end(), [](unsigned char letter) {
                      return std::isalnum(letter) != 0 || letter == '_' || letter == '/' ||
                             letter == '.' || letter == '-';
                    });
  if (good) return;
  throw Error(ErrorCode::kInvalidArgument,
              message("rpc::Listener: \"", printable(method),
                      "\" is not a method name; use 1 to 200 letters, digits and _ / . -"));
}

}  // namespace

namespace internal {

/// Creates a reactor for each incoming call.
class CallDispatcher final : public grpc::CallbackGenericService {
 public:
  explicit CallDispatcher(std::shared_ptr<ListenerCore> core) : core_(std::move(core)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    take_over(this);
    const std::string& path = context->method();
    if (!is_authorized(*core_, *context)) {
      const std::string text = message("a call from ", peer_address(context->peer()),
                                       ": it has a different job secret, or none.");
      core_->log.warn(message("rpc: listener ", core_->address, " refused ", text));
      core_->note_refusal(text);
      return new RefusedCall({grpc::StatusCode::UNAUTHENTICATED, "job secret"});
    }
    if (path.starts_with(kMethodPrefix)) {
      const ListenerCore::Handlers found = find(path.substr(kMethodPrefix.size()));
      if (found.call != nullptr) return new IncomingCall(core_, found.call, *context);
      if (found.stream != nullptr) return new StreamCall(core_, found.stream, *context);
    }
    return new RefusedCall(
        {grpc::StatusCode::UNIMPLEMENTED, "the listener has no such method (yet)"});
  }

 private:
  ListenerCore::Handlers find(const std::string& method) {
    MutexLock lock(core_->mutex);
    const auto found = core_->handlers.find(method);
    return found == core_->handlers.end() ? ListenerCore::Handlers{} : found->second;
  }

  std::shared_ptr<ListenerCore> core_;
};

}  // namespace internal

class Listener::Impl {
 public:
  explicit Impl(ListenerOptions options);
  ~Impl() { stop(); }

  void set(const std::string& method, ListenerCore::Handlers handlers);
  void stop();
  int port() const { return address_.port; }
  std::string address() const { return address_.to_string(); }
  std::string last_refusal() const {
    MutexLock lock(core_->mutex);
    return core_->last_refusal;
  }

 private:
  void start_grpc();
  void cancel_waiting_calls();

  const ListenerOptions options_;
  Address address_;
  std::shared_ptr<ListenerCore> core_;
  internal::CallDispatcher dispatcher_;
  internal::ListenerIdentity identity_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> door_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<internal::Acceptor> acceptor_;
  Mutex stop_mutex_;
  bool stopped_ TUTTI_GUARDED_BY(stop_mutex_) = false;
};

Listener::Impl::Impl(ListenerOptions options)
    : options_(std::move(options)),
      address_(internal::split_address("rpc::Listener", options_.address)),
      core_(std::make_shared<ListenerCore>(options_)),
      dispatcher_(core_) {
  check_listener_options(options_);
  identity_ = internal::make_listener_identity(options_.security, address_.to_string());
  FileDescriptor listening = internal::listen_on(address_);
  address_.port = internal::local_port(listening.get());
  core_->address = address_.to_string();
  if (identity_.tls) core_->call_secret = identity_.secret;
  start_grpc();
  acceptor_ = std::make_unique<internal::Acceptor>(
      std::move(listening),
      internal::AcceptorOptions{
          .address = address_.to_string(),
          .secret = identity_.secret,
          .tls = identity_.tls,
          .max_connections = static_cast<size_t>(options_.max_connections),
          .handshake_timeout = options_.handshake_timeout,
          .on_refusal = [core = core_](const std::string& text) { core->note_refusal(text); }},
      [this](int fd) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.fd = fd;
        door_->HandleNewConnection(&connection);
      });
}

void Listener::Impl::start_grpc() {
  grpc::ServerBuilder builder;
  internal::apply_arguments(
      internal::transport_arguments({.max_message_bytes = options_.max_message_bytes,
                                     .keepalive_interval = options_.keepalive_interval,
                                     .keepalive_timeout = options_.keepalive_timeout,
                                     .handshake_timeout = options_.handshake_timeout}),
      builder);
  internal::hand_over(&dispatcher_);
  builder.RegisterCallbackGenericService(&dispatcher_);
  door_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      identity_.credentials);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("rpc::Listener: gRPC could not start on ", address_.to_string(),
                        identity_.tls ? "; are the certificates and the key valid?" : "."));
  }
}

void Listener::Impl::set(const std::string& method, ListenerCore::Handlers handlers) {
  check_method(method);
  MutexLock lock(core_->mutex);
  core_->handlers[method] = std::move(handlers);
}

void Listener::Impl::cancel_waiting_calls() {
  std::vector<std::shared_ptr<Reply::Slot>> waiting;
  {
    MutexLock lock(core_->mutex);
    core_->stopped = true;
    for (const auto& [key, slot] : core_->waiting) {
      if (auto alive = slot.lock()) waiting.push_back(std::move(alive));
    }
  }
  for (const auto& slot : waiting) {
    slot->finish(internal::error_buffer(
        ErrorCode::kCancelled, message("rpc::Listener: ", core_->address, " is stopping.")));
  }
}

void Listener::Impl::stop() {
  MutexLock lock(stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  acceptor_.reset();
  cancel_waiting_calls();
  // Responses in flight get a moment; then everything open is cancelled.
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  core_->pool.stop();
  // Handlers may own the owner of this listener.
  std::map<std::string, ListenerCore::Handlers> handlers;
  MutexLock core_lock(core_->mutex);
  handlers.swap(core_->handlers);
}

Listener::Listener(ListenerOptions options)
    : impl_((internal::keep_callback_threads(), std::make_unique<Impl>(std::move(options)))) {}
Listener::~Listener() = default;

int Listener::port() const { return impl_->port(); }
std::string Listener::address() const { return impl_->address(); }
std::string Listener::last_refusal() const { return impl_->last_refusal(); }

void Listener::handle(const std::string& method, UnaryHandler handler) {
  handle_deferred(method, [handler = std::move(handler)](const Caller& caller,
                                                         std::string_view request, Reply reply) {
    reply.answer(handler(caller, request));
  });
}

void Listener::handle_deferred(const std::string& method, DeferredHandler handler) {
  impl_->set(method, {.call = std::make_shared<const DeferredHandler>(std::move(handler))});
}

void Listener::handle_stream(const std::string& method, StreamHandler handler) {
  impl_->set(method, {.stream = std::make_shared<const StreamHandler>(std::move(handler))});
}

void Listener::stop() { impl_->stop(); }

}  // namespace tutti::rpc
