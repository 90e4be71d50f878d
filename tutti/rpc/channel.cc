// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/channel.h"

#include <sys/socket.h>

#include <utility>

#include <grpcpp/client_context.h>

#include "tutti/base/error.h"
#include "tutti/rpc/internal/callback_threads.h"
#include "tutti/rpc/internal/client_connection.h"
#include "tutti/rpc/internal/grpc_bytes.h"
#include "tutti/rpc/internal/handshake.h"
#include "tutti/rpc/internal/listener_core.h"
#include "tutti/rpc/internal/open_calls.h"
#include "tutti/rpc/internal/outgoing_stream.h"

namespace tutti::rpc {
namespace {

void check_channel_options(const ChannelOptions& options) {
  if (options.max_message_bytes < 1024 || options.max_message_bytes > (size_t{1} << 30) ||
      options.keepalive_interval.count() < 1 || options.keepalive_timeout.count() < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "rpc::Channel: max_message_bytes must be from 1 KB to 1 GB, and keepalive_interval "
                "and keepalive_timeout at least 1 ms.");
  }
}

}  // namespace

class Channel::Impl {
 public:
  Impl(std::string address, const ChannelOptions& options, internal::Connection connection)
      : address_(std::move(address)),
        max_message_bytes_(options.max_message_bytes),
        connection_(std::move(connection)) {}

  const std::string& address() const { return address_; }
  std::string call(const std::string& method, std::string_view request, Deadline deadline);
  internal::StreamTarget stream_target(const std::string& method) const {
    return {connection_.channel, address_, method, token(method), max_message_bytes_, open_calls_};
  }
  void abort();

 private:
  std::string token(const std::string& method) const {
    if (connection_.call_secret.empty()) return {};
    return internal::call_token(connection_.call_secret,
                                std::string(internal::kMethodPrefix) + method);
  }
  [[noreturn]] void fail_call(const std::string& method, const grpc::Status& status) const;

  const std::string address_;
  const size_t max_message_bytes_;
  internal::Connection connection_;
  const std::shared_ptr<internal::OpenCalls> open_calls_ = std::make_shared<internal::OpenCalls>();
};

std::string Channel::Impl::call(const std::string& method, std::string_view request,
                                Deadline deadline) {
  if (request.size() > max_message_bytes_) {
    throw Error(ErrorCode::kInvalidArgument,
                message("rpc::Channel: a request of ", request.size(), " bytes for ", address_,
                        " exceeds ", max_message_bytes_, " (ChannelOptions::max_message_bytes)."));
  }
  const auto context = std::make_shared<grpc::ClientContext>();
  internal::set_call_deadline(*context, deadline);
  if (const std::string proof = token(method); !proof.empty()) {
    context->AddMetadata(internal::kTokenHeader, proof);
  }
  open_calls_->add(context);
  const grpc::ByteBuffer out = internal::to_buffer(request);
  grpc::ByteBuffer in;
  const grpc::Status status = internal::blocking_call(
      *connection_.channel, *context, std::string(internal::kMethodPrefix) + method, out, in);
  open_calls_->remove(context);
  if (!status.ok()) fail_call(method, status);
  return internal::open_answer(in, message("rpc: call to \"", method, "\" at ", address_));
}

void Channel::Impl::fail_call(const std::string& method, const grpc::Status& status) const {
  const std::string who = message("rpc: call to \"", method, "\" at ", address_);
  const std::string text = printable(status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      throw Error(ErrorCode::kDeadlineExceeded, message(who, ": no response before the deadline."));
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
      throw Error(ErrorCode::kUnavailable, message(who, ": the connection is broken: ", text, "."));
    case grpc::StatusCode::UNAUTHENTICATED:
      throw Error(ErrorCode::kFailedPrecondition,
                  message(who,
                          ": refused: the job secrets differ, or this process has none. Give all "
                          "processes of the job the same one (TUTTI_JOB_SECRET)."));
    default:
      throw Error(internal::to_code(status.error_code()), message(who, ": ", text, "."));
  }
}

void Channel::Impl::abort() {
  if (connection_.socket.is_open()) shutdown(connection_.socket.get(), SHUT_RDWR);
  open_calls_->abort();
}

std::shared_ptr<Channel> Channel::connect(const std::string& address, const ChannelOptions& options,
                                          Deadline deadline) {
  check_channel_options(options);
  internal::keep_callback_threads();
  return std::shared_ptr<Channel>(new Channel(std::make_unique<Impl>(
      address, options, internal::open_connection(address, options, deadline))));
}

Channel::Channel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Channel::~Channel() = default;

const std::string& Channel::address() const { return impl_->address(); }

std::string Channel::call(const std::string& method, std::string_view request, Deadline deadline) {
  return impl_->call(method, request, deadline);
}

std::unique_ptr<SendStream> Channel::open_stream(
    const std::string& method, std::string_view opening,
    std::function<void(std::exception_ptr)> on_broken) {
  return internal::open_outgoing_stream(impl_->stream_target(method), opening,
                                        std::move(on_broken));
}

void Channel::abort() { impl_->abort(); }

}  // namespace tutti::rpc
