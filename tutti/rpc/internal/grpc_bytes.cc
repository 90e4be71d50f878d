// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/grpc_bytes.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <grpc/grpc.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/slice.h>

#include "tutti/base/error.h"

namespace tutti::rpc::internal {
namespace {

constexpr size_t kStatusText = 1500;
// gRPC adds five bytes per message, and an answer has one byte before its text.
constexpr size_t kMessageSlack = 1024;

constexpr std::pair<ErrorCode, grpc::StatusCode> kCodes[] = {
    {ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::kFailedPrecondition, grpc::StatusCode::FAILED_PRECONDITION},
    {ErrorCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {ErrorCode::kUnimplemented, grpc::StatusCode::UNIMPLEMENTED},
    {ErrorCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {ErrorCode::kDeadlineExceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
    {ErrorCode::kCancelled, grpc::StatusCode::CANCELLED},
    {ErrorCode::kDataLoss, grpc::StatusCode::DATA_LOSS},
    {ErrorCode::kInternal, grpc::StatusCode::INTERNAL},
};

}  // namespace

grpc::ByteBuffer to_buffer(std::string_view bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return {&slice, 1};
}

std::string to_text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (buffer.Valid()) buffer.Dump(&slices);
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

Message to_message(const grpc::ByteBuffer& buffer) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (buffer.Valid()) buffer.Dump(slices.get());
  std::vector<Message::Piece> pieces;
  pieces.reserve(slices->size());
  for (const grpc::Slice& slice : *slices) {
    pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  return {std::move(pieces), std::move(slices)};
}

grpc::ByteBuffer answer_buffer(std::string_view text) {
  std::string bytes(1, '\0');
  bytes += text;
  return to_buffer(bytes);
}

grpc::ByteBuffer error_buffer(ErrorCode code, std::string_view text) {
  std::string bytes(1, static_cast<char>(1 + static_cast<int>(code)));
  bytes += text;
  return to_buffer(bytes);
}

std::string open_answer(const grpc::ByteBuffer& buffer, const std::string& who) {
  std::string bytes = to_text(buffer);
  const int first = bytes.empty() ? -1 : static_cast<unsigned char>(bytes[0]);
  if (first == 0) return bytes.erase(0, 1);
  if (first < 0 || first > 1 + static_cast<int>(ErrorCode::kInternal)) {
    throw Error(ErrorCode::kDataLoss, message(who, ": malformed response."));
  }
  throw Error(static_cast<ErrorCode>(first - 1), bytes.erase(0, 1));
}

grpc::Status to_status(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const Error& known) {
    for (const auto& [ours, theirs] : kCodes) {
      if (ours == known.code()) return {theirs, printable(known.what(), kStatusText)};
    }
    return {grpc::StatusCode::INTERNAL, printable(known.what(), kStatusText)};
  } catch (const std::exception& other) {
    return {grpc::StatusCode::INTERNAL, printable(other.what(), kStatusText)};
  } catch (...) {
    return {grpc::StatusCode::INTERNAL, "an exception of unknown type"};
  }
}

ErrorCode to_code(grpc::StatusCode code) {
  for (const auto& [ours, theirs] : kCodes) {
    if (theirs == code) return ours;
  }
  // gRPC reports a message that is too large this way.
  if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) return ErrorCode::kInvalidArgument;
  if (code == grpc::StatusCode::UNAUTHENTICATED) return ErrorCode::kFailedPrecondition;
  return ErrorCode::kInternal;
}

grpc::ChannelArguments transport_arguments(const TransportSettings& settings) {
  grpc::ChannelArguments args;
  const int limit = static_cast<int>(settings.max_message_bytes + kMessageSlack);
  args.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, limit);
  args.SetInt(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, limit);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ALLOW_REUSEPORT, 0);
  args.SetInt(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);

  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(settings.keepalive_interval.count()));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(settings.keepalive_timeout.count()));
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The peer may ping as often as it likes: it is authenticated.
  args.SetInt(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  args.SetInt(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 0);
  args.SetInt(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
              static_cast<int>(settings.handshake_timeout.count()));

  // Frames, windows and reads are large: the defaults suit small messages.
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 8 << 20);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 8 << 20);
  args.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  args.SetInt(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 8 << 10);
  args.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
  return args;
}

grpc::Status blocking_call(grpc::Channel& channel, grpc::ClientContext& context,
                           const std::string& path, const grpc::ByteBuffer& request,
                           grpc::ByteBuffer& answer) {
  const grpc::internal::RpcMethod method(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  return grpc::internal::BlockingUnaryCall(&channel, method, &context, request, &answer);
}

void set_call_deadline(grpc::ClientContext& context, Deadline deadline) {
  if (deadline.when() == Deadline::Clock::time_point::max()) return;
  using namespace std::chrono;
  context.set_deadline(system_clock::now() + duration_cast<system_clock::duration>(
                                                 deadline.when() - Deadline::Clock::now()));
}

std::string peer_address(const std::string& peer) {
  std::string address = peer.substr(peer.find(':') + 1);
  for (const auto& [code, letter] : {std::pair("%5B", "["), std::pair("%5D", "]")}) {
    if (const size_t at = address.find(code); at != std::string::npos) {
      address.replace(at, 3, letter);
    }
  }
  return printable(address);
}

}  // namespace tutti::rpc::internal
