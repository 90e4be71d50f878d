// SPDX-License-Identifier: Apache-2.0
//
// One outgoing stream: messages queue up, and gRPC takes one at a time but keeps several in flight.

#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <grpcpp/channel.h>

#include "tutti/rpc/channel.h"
#include "tutti/rpc/internal/open_calls.h"

namespace tutti::rpc::internal {

struct StreamTarget {
  std::shared_ptr<grpc::Channel> channel;
  std::string address;
  std::string method;
  std::string token;  ///< a header, if not empty
  size_t max_message_bytes;
  std::shared_ptr<OpenCalls> open_calls;
};

std::unique_ptr<SendStream> open_outgoing_stream(StreamTarget target, std::string_view opening,
                                                 std::function<void(std::exception_ptr)> on_broken);

}  // namespace tutti::rpc::internal
