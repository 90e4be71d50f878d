// SPDX-License-Identifier: Apache-2.0
//
// Runs several programs as one job: puts the name of the program before each line of its output,
// ends the job when a program fails or the time is up, and passes on signals. The command `tutti
// run` is made of this and of local_cluster.h.

#pragma once

#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/process.h"

namespace tutti::cli {

/// One program of a job. `options.descriptors` must not have 1 and 2, which launch() reads. A plain
/// value.
struct LaunchedProgram {
  std::string name;  ///< in messages, and in brackets before each line of its output
  ProcessOptions options;
};

struct LaunchOptions {
  /// For the whole job; ten years or more means forever.
  std::chrono::milliseconds timeout = std::chrono::hours(24 * 3650);
  /// How long programs that were asked to end may take before they are killed.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  /// If one fails, the others get SIGTERM.
  bool stop_on_failure = true;
  /// Passes on SIGINT, SIGTERM, SIGHUP and SIGQUIT, which end the job like a failure, and SIGUSR1
  /// and SIGUSR2, which do not. A second SIGINT kills. Only for programs whose other threads, if
  /// there are any, block these signals.
  bool forward_signals = false;
  int output = STDOUT_FILENO;  ///< receives their standard output
  int errors = STDERR_FILENO;  ///< receives their standard error, and the launcher's own messages
  std::string who = "launch";  ///< at the start of the launcher's own messages
};

/// How a job ended. A plain value.
struct LaunchResult {
  std::vector<ExitStatus> programs;  ///< in the order of the programs
  std::optional<size_t>
      first_failure;       ///< the program that failed before anything else ended the job
  bool timed_out = false;  ///< the timeout ended the job
  int signal = 0;          ///< the signal that ended the job, or 0

  /// What a command returns: 128 plus the signal, 124 after the timeout, the status of the first
  /// failure, or 0.
  int exit_status() const;
};

/// Starts the programs and waits until all have ended. No program, nor anything that it has started
/// in its process group, outlives the call, even if it throws or this process is killed. Throws
/// what Process throws if one cannot be started. Any number of jobs may run on different threads,
/// but only one that forwards signals.
LaunchResult launch(const std::vector<LaunchedProgram>& programs,
                    const LaunchOptions& options = {});

}  // namespace tutti::cli
