// SPDX-License-Identifier: Apache-2.0
//
// A real HTTP or HTTPS server in its own process, tests/cluster/http_standin.py, which answers what
// a test tells it to.

#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/certificates.h"
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
    start(arguments);
  }
  ~HttpStandIn() {
    close(input_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  HttpStandIn(const HttpStandIn&) = delete;
  HttpStandIn& operator=(const HttpStandIn&) = delete;

  const std::string& host() const { return host_; }
  const std::string& port() const { return port_; }
  std::string ca_file() const { return folder_.path("tls/ca.pem"); }

  /// "http://127.0.0.1:4321"
  std::string url() const {
    const bool is_v6 = host_.find(':') != std::string::npos;
    return std::string(scheme_ == Scheme::kHttps ? "https://" : "http://") +
           (is_v6 ? '[' + host_ + ']' : host_) + ':' + port_;
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

  void start(std::vector<std::string>& arguments) {
    int to_child[2];
    int from_child[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_child, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    input_ = to_child[1];
    char letter = 0;
    while (read(from_child[0], &letter, 1) == 1 && letter != '\n') port_ += letter;
    close(from_child[0]);
    EXPECT_NE(port_, "") << "http_standin.py has not started";
  }

  TempFolder folder_;
  Scheme scheme_;
  std::string host_;
  std::string port_;
  pid_t pid_ = -1;
  int input_ = -1;
};

}  // namespace tutti::test
