// SPDX-License-Identifier: Apache-2.0
//
// Turns an address into a gRPC channel: resolves it, connects, proves the secret, and retries until
// it succeeds or the deadline passes.

#pragma once

#include <memory>
#include <string>

#include <grpcpp/channel.h>

#include "tutti/base/deadline.h"
#include "tutti/rpc/channel.h"
#include "tutti/rpc/internal/credentials.h"
#include "tutti/rpc/internal/sockets.h"

namespace tutti::rpc::internal {

struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  FileDescriptor socket;    ///< a duplicate, to break the connection; closed with TLS
  std::string call_secret;  ///< with TLS, the argument of call_token(); may be empty
};

/// Behaves like Channel::connect().
Connection open_connection(const std::string& address, const ChannelOptions& options,
                           Deadline deadline);

}  // namespace tutti::rpc::internal
