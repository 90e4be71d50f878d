// SPDX-License-Identifier: Apache-2.0
//
// Asks an HTTP server and returns its answer: for the APIs of platforms. Built on libcurl, which
// only http_client.cc sees.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::internal {

struct HttpClientOptions {
  /// PEM file of the only authorities whose certificates count. Empty: those of the system.
  std::string ca_file = "";
  size_t largest_answer = size_t{16} << 20;  ///< headers and body, in bytes
};

struct HttpAnswer {
  int status = 0;
  std::string body;
};

/// Sends requests one after the other, over one connection if possible. Certificates are always
/// verified. Redirects are not followed, and proxies of the environment are not used: requests
/// carry credentials, and go to the server that is named and to no other. Not thread-safe.
///
/// All functions throw kDeadlineExceeded, kUnavailable if there is no connection or it breaks,
/// kFailedPrecondition if the server's certificate is not accepted, kDataLoss for an answer that is
/// too large, kInvalidArgument for a malformed URL; the message begins with `who` and names the
/// URL.
class HttpClient {
 public:
  explicit HttpClient(std::string who, HttpClientOptions options = {});
  ~HttpClient();

  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// The answer, whatever its status is. Each header is "Name: value", without control characters.
  HttpAnswer get(const std::string& url, const std::vector<std::string>& headers,
                 Deadline deadline);
  HttpAnswer post(const std::string& url, const std::vector<std::string>& headers,
                  const std::string& body, Deadline deadline);

 private:
  struct Handle;

  HttpAnswer send(const char* method, const std::string& url,
                  const std::vector<std::string>& headers, const std::string* body,
                  Deadline deadline);
  [[noreturn]] void fail(ErrorCode code, const char* method, const std::string& url,
                         const std::string& what) const;

  std::string who_;
  HttpClientOptions options_;
  std::unique_ptr<Handle> handle_;
};

/// The body of an answer with status 200. Throws for every other status, with the server's message:
/// kFailedPrecondition for 401 and 403, which `advice` explains, kNotFound for 404, kUnavailable
/// for 429 and 500 or more, else kFailedPrecondition.
std::string body_of_ok(std::string_view who, std::string_view url, HttpAnswer answer,
                       std::string_view advice);

/// The text as part of a URL: everything but letters, digits and "-._~" as %XX.
std::string url_encoded(std::string_view text);

/// Throws kFailedPrecondition unless the URL is https, or http to this machine's loopback: on
/// the network path, anyone could read a token.
void check_url_for_token(std::string_view who, std::string_view url);

/// The only line of a file with a token. Throws kFailedPrecondition if the file cannot be read, is
/// empty or larger than 64 KiB, or has more than one line.
std::string read_token_file(std::string_view who, const std::string& path);

}  // namespace tutti::internal
