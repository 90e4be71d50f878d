// SPDX-License-Identifier: Apache-2.0
//
// The processes of one way to sum over ranks, started by the benchmark and told what to do through
// local sockets (rank_loop.h). Between two commands they sleep, so that groups can take turns.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bench {

/// For one thread.
class ProcessGroup {
 public:
  using Command = std::vector<std::string>;

  /// Starts the commands, each with the path of the socket as one more argument at its end, and
  /// waits until `size` ranks are ready. Null, after a line about it, if they do not come.
  static std::unique_ptr<ProcessGroup> start(const std::string& name, int size,
                                             const std::vector<Command>& commands);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Makes a kind of work ready on every rank: for sums it takes memory for `count` floats and
  /// checks a sum. Stops the program if a rank does not answer "ok".
  void open(const std::string& kind, int64_t count);

  /// The same, with the answers of the ranks.
  std::vector<std::string> answers_to_open(const std::string& kind, int64_t count);

  /// Seconds of the slowest rank for work of this kind.
  double run(const std::string& kind, int64_t iterations);

 private:
  ProcessGroup(std::string name, int size);

  bool accept_ranks(int listener);
  bool exchange_until_ready();
  void send_all(const std::string& text);
  std::vector<std::string> receive_all();

  std::string name_;
  std::vector<int> sockets_;  // of each rank
  std::vector<pid_t> processes_;
};

/// Starts a program, which is looked for in the PATH; -1 if it cannot be started.
pid_t spawn(ProcessGroup::Command command);

/// Whether the program was built: peers are, if their packages are installed. `name` is looked for
/// beside this program; the result is its path, or empty.
std::string program_beside(const std::string& name);

/// A folder for sockets and stores, removed when the program ends.
const std::string& scratch_folder();

}  // namespace bench
