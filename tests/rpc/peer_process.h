// SPDX-License-Identifier: Apache-2.0
//
// A server in its own process, which tests may stop or kill. Started by spawn and exec.

#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::rpc::test {

class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> arguments) {
    int to_child[2];
    int from_child[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(from_child, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
    arguments.insert(arguments.begin(), TUTTI_RPC_PEER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, TUTTI_RPC_PEER, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(to_child[0]);
    close(from_child[1]);
    input_ = to_child[1];
    char letter = 0;
    while (read(from_child[0], &letter, 1) == 1 && letter != '\n') address_ += letter;
    close(from_child[0]);
  }
  ~PeerProcess() {
    close(input_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const std::string& address() const { return address_; }
  void signal(int number) const { ::kill(pid_, number); }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string address_;
};

}  // namespace tutti::rpc::test
