// SPDX-License-Identifier: Apache-2.0
//
// Converts between this layer's types and gRPC's: bytes, errors, settings.

#pragma once

#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/rpc/message.h"

namespace tutti::rpc::internal {

/// Both copy the bytes.
grpc::ByteBuffer to_buffer(std::string_view bytes);
std::string to_text(const grpc::ByteBuffer& buffer);
/// Shares the bytes with `buffer`.
Message to_message(const grpc::ByteBuffer& buffer);

/// A response is one byte (0, or 1 + error code) and text.
grpc::ByteBuffer answer_buffer(std::string_view text);
grpc::ByteBuffer error_buffer(ErrorCode code, std::string_view text);
/// Returns the text of a response, or throws the error in it.
std::string open_answer(const grpc::ByteBuffer& buffer, const std::string& who);

/// Converts the error that ends a stream. The text is truncated, because it travels in a header.
grpc::Status to_status(std::exception_ptr error);
ErrorCode to_code(grpc::StatusCode code);

struct TransportSettings {
  size_t max_message_bytes;
  std::chrono::milliseconds keepalive_interval;
  std::chrono::milliseconds keepalive_timeout;
  std::chrono::milliseconds handshake_timeout{5000};
};

/// The settings of both sides: sizes, windows, keepalive.
grpc::ChannelArguments transport_arguments(const TransportSettings& settings);

/// Calls a method and waits, on this thread, for the response or the deadline of the context.
grpc::Status blocking_call(grpc::Channel& channel, grpc::ClientContext& context,
                           const std::string& path, const grpc::ByteBuffer& request,
                           grpc::ByteBuffer& answer);

void set_call_deadline(grpc::ClientContext& context, Deadline deadline);

/// "ipv4:127.0.0.1:5" or "ipv6:%5B::1%5D:5" as an address.
std::string peer_address(const std::string& peer);

}  // namespace tutti::rpc::internal
