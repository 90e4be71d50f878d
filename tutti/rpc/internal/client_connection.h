// SPDX-License-Identifier: Apache-2.0
//
// Gets from an address to a gRPC channel: look up, connect, prove the secret, and all again until
// it works or the deadline passes.

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
  FileDescriptor socket;    ///< a duplicate, to break the connection; none with TLS
  std::string call_secret;  ///< with TLS: what call_token() takes, may be empty
};

/// As Channel::connect().
Connection open_connection(const std::string& address, const ChannelOptions& options,
                           Deadline deadline);

}  // namespace tutti::rpc::internal
