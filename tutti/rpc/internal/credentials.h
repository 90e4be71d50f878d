// SPDX-License-Identifier: Apache-2.0
//
// The credentials a process presents to its peers: the job secret, certificates, or both.

#pragma once

#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "tutti/rpc/internal/job_secret.h"
#include "tutti/rpc/internal/listener_core.h"
#include "tutti/rpc/security.h"

namespace tutti::rpc::internal {

struct ListenerIdentity {
  std::string secret;  ///< may be empty with TLS
  bool tls = false;
  std::shared_ptr<grpc::ServerCredentials> credentials;
};

struct ClientIdentity {
  JobSecret secret;  ///< may be empty with TLS
  bool tls = false;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  ///< only with TLS
};

/// Read and check the files that `security` names. Throw kInvalidArgument, kNotFound, or what
/// find_job_secret() throws.
ListenerIdentity make_listener_identity(const SecurityOptions& security,
                                        const std::string& address);
ClientIdentity make_client_identity(const SecurityOptions& security, const std::string& address);

/// With TLS each call carries a token; without it, the connection itself was authenticated.
bool is_authorized(const ListenerCore& core, const grpc::GenericCallbackServerContext& context);

void apply_arguments(const grpc::ChannelArguments& args, grpc::ServerBuilder& builder);

}  // namespace tutti::rpc::internal
