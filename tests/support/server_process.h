// SPDX-License-Identifier: Apache-2.0
//
// A server in its own process, which prints where it can be reached and serves until its input
// ends. Tests may stop or kill it.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/process.h"

namespace tutti::test {

class ServerProcess {
 public:
  explicit ServerProcess(std::vector<std::string> command)
      : process_({.command = std::move(command),
                  .descriptors = {{STDIN_FILENO, input_.read_end.get()},
                                  {STDOUT_FILENO, output_.write_end.get()}}},
                 guard_) {
    input_.read_end.reset();
    output_.write_end.reset();
    char letter = 0;
    while (read(output_.read_end.get(), &letter, 1) == 1 && letter != '\n') first_line_ += letter;
  }

  /// What it printed first; empty if it has ended instead.
  const std::string& first_line() const { return first_line_; }
  void signal(int number) const { process_.signal(number); }

 private:
  cli::Pipe input_;
  cli::Pipe output_;
  const cli::ProcessGuard guard_;
  cli::Process process_;
  std::string first_line_;
};

}  // namespace tutti::test
