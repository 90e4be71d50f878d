// SPDX-License-Identifier: Apache-2.0
//
// The processes of one implementation of sums over ranks, which the benchmark starts and controls
// through local sockets (rank_loop.h). Between two commands they sleep, so that groups can take
// turns.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/process.h"

namespace bench {

/// Use it on one thread only.
class ProcessGroup {
 public:
  using Command = std::vector<std::string>;

  /// Starts the commands, each with the path of the socket as an additional last argument, and
  /// waits until `size` ranks are ready. If they do not connect, prints so and returns null.
  static std::unique_ptr<ProcessGroup> start(const std::string& name, int size,
                                             const std::vector<Command>& commands);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  /// Prepares a kind of work on every rank: for sums it allocates `count` floats and checks a sum.
  /// Stops the program if a rank does not answer "ok".
  void open(const std::string& kind, int64_t count);

  /// The same, but returns the answers of the ranks.
  std::vector<std::string> answers_to_open(const std::string& kind, int64_t count);

  /// Returns the seconds of the slowest rank for work of this kind.
  double run(const std::string& kind, int64_t iterations);

 private:
  ProcessGroup(std::string name, int size);

  bool start_processes(const std::vector<Command>& commands, const std::string& path);
  bool accept_ranks(int listener);
  bool exchange_until_ready();
  void send_all(const std::string& text);
  std::vector<std::string> receive_all();

  std::string name_;
  std::vector<int> sockets_;  // of each rank
  const tutti::cli::ProcessGuard guard_;
  std::vector<std::unique_ptr<tutti::cli::Process>> processes_;
};

/// Returns the path of the program `name` beside this program, or an empty path if it was not
/// built: peers are built only if their packages are installed.
std::string program_beside(const std::string& name);

/// A folder for sockets and stores, removed when the program ends.
const std::string& scratch_folder();

}  // namespace bench
