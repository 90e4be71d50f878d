// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/credentials.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "tutti/base/error.h"
#include "tutti/rpc/internal/handshake.h"

namespace tutti::rpc::internal {
namespace {

std::string read_pem(const std::string& path, const char* field, const char* marker) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open()) {
    throw Error(ErrorCode::kNotFound,
                message("rpc: cannot read the file ", path, " of SecurityOptions::", field, "."));
  }
  if (text.find(marker) == std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                message("rpc: the file ", path, " of SecurityOptions::", field, " has no \"",
                        marker, "\". It must be a PEM file."));
  }
  return text;
}

struct PemTexts {
  std::string ca;
  std::string certificate;
  std::string key;
};

PemTexts read_pem_files(const SecurityOptions& security) {
  if (security.ca_file.empty() || security.certificate_file.empty() || security.key_file.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "rpc: SecurityOptions needs all of ca_file, certificate_file and key_file, or none.");
  }
  return {read_pem(security.ca_file, "ca_file", "BEGIN CERTIFICATE"),
          read_pem(security.certificate_file, "certificate_file", "BEGIN CERTIFICATE"),
          read_pem(security.key_file, "key_file", "PRIVATE KEY")};
}

}  // namespace

ListenerIdentity make_listener_identity(const SecurityOptions& security,
                                        const std::string& address) {
  ListenerIdentity identity;
  identity.tls = security.has_certificates();
  if (!identity.tls) {
    identity.secret = locate_job_secret(security, is_loopback(address)).value;
    identity.credentials = grpc::InsecureServerCredentials();
    return identity;
  }
  identity.secret = given_job_secret(security).value;
  PemTexts texts = read_pem_files(security);
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(texts.ca);
  options.pem_key_cert_pairs.push_back({std::move(texts.key), std::move(texts.certificate)});
  identity.credentials = grpc::SslServerCredentials(options);
  return identity;
}

ClientIdentity make_client_identity(const SecurityOptions& security, const std::string& address) {
  ClientIdentity identity;
  identity.tls = security.has_certificates();
  if (!identity.tls) {
    identity.secret = locate_job_secret(security, is_loopback(address));
    return identity;
  }
  identity.secret = given_job_secret(security);
  PemTexts texts = read_pem_files(security);
  identity.credentials = grpc::SslCredentials(
      {std::move(texts.ca), std::move(texts.key), std::move(texts.certificate)});
  return identity;
}

bool is_authorized(const ListenerCore& core, const grpc::GenericCallbackServerContext& context) {
  if (core.call_secret.empty()) return true;
  const auto& headers = context.client_metadata();
  const auto found = headers.find(kTokenHeader);
  if (found == headers.end()) return false;
  return equal_bytes({found->second.data(), found->second.size()},
                     call_token(core.call_secret, context.method()));
}

void apply_arguments(const grpc::ChannelArguments& args, grpc::ServerBuilder& builder) {
  const grpc_channel_args list = args.c_channel_args();
  for (size_t i = 0; i < list.num_args; ++i) {
    const grpc_arg& arg = list.args[i];
    if (arg.type == GRPC_ARG_INTEGER) builder.AddChannelArgument(arg.key, arg.value.integer);
  }
}

}  // namespace tutti::rpc::internal
