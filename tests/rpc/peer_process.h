// SPDX-License-Identifier: Apache-2.0
//
// A listener in its own process, which tests may stop or kill.

#pragma once

#include <string>
#include <vector>

#include "cli/process.h"

namespace tutti::rpc::test {

class PeerProcess {
 public:
  explicit PeerProcess(std::vector<std::string> arguments)
      : process_({.command = command(std::move(arguments)),
                  .descriptors = {{STDIN_FILENO, input_.read_end.get()},
                                  {STDOUT_FILENO, output_.write_end.get()}}},
                 guard_) {
    input_.read_end.reset();
    output_.write_end.reset();
    char letter = 0;
    while (read(output_.read_end.get(), &letter, 1) == 1 && letter != '\n') address_ += letter;
  }

  const std::string& address() const { return address_; }
  void signal(int number) const { process_.signal(number); }

 private:
  static std::vector<std::string> command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), TUTTI_RPC_PEER);
    return arguments;
  }

  cli::Pipe input_;  // It serves until its input ends.
  cli::Pipe output_;
  const cli::ProcessGuard guard_;
  cli::Process process_;
  std::string address_;
};

}  // namespace tutti::rpc::test
