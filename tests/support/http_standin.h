// SPDX-License-Identifier: Apache-2.0
//
// A real HTTP or HTTPS server in its own process, tests/cluster/http_standin.py, which answers what
// a test tells it to.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/certificates.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_folder.h"

namespace tutti::test {

/// The routes are those of http_standin.py.
class HttpStandIn {
 public:
  enum class Scheme { kHttp, kHttps };

  explicit HttpStandIn(const nlohmann::json& routes, Scheme scheme = Scheme::kHttp)
      : scheme_(scheme) {
    host_ = routes.at(0).value("host", "127.0.0.1");
    write_file(folder_.path("routes.json"), routes.dump());
    write_file(log(), "");
    std::vector<std::string> arguments = {
        TUTTI_PYTHON, "-I", "-S", TUTTI_HTTP_STANDIN, folder_.path("routes.json"), log()};
    if (scheme == Scheme::kHttps) {
      cli::make_throwaway_ca(folder_.path("tls"), {{"server", {host_}}});
      arguments.push_back(folder_.path("tls/server.pem"));
      arguments.push_back(folder_.path("tls/server.key"));
    }
    process_.emplace(arguments);
    EXPECT_NE(port(), "") << "http_standin.py has not started";
  }

  const std::string& host() const { return host_; }
  const std::string& port() const { return process_->first_line(); }
  std::string ca_file() const { return folder_.path("tls/ca.pem"); }

  /// "http://127.0.0.1:4321"
  std::string url() const {
    const bool is_v6 = host_.find(':') != std::string::npos;
    return std::string(scheme_ == Scheme::kHttps ? "https://" : "http://") +
           (is_v6 ? '[' + host_ + ']' : host_) + ':' + port();
  }

  /// The requests so far.
  std::vector<nlohmann::json> requests() const {
    std::vector<nlohmann::json> out;
    std::ifstream lines(log());
    for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }

 private:
  std::string log() const { return folder_.path("requests"); }

  TempFolder folder_;
  Scheme scheme_;
  std::string host_;
  std::optional<ServerProcess> process_;
};

}  // namespace tutti::test
