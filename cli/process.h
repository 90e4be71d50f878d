// SPDX-License-Identifier: Apache-2.0
//
// Starts a program and waits for it. Commands, tests and benchmarks all make their processes here.
// launch.h runs several programs as one job.

#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

#include "cli/descriptor.h"

namespace tutti::cli {

/// How a process ended. A plain value.
struct ExitStatus {
  int code = 0;    ///< what it returned, unless a signal ended it
  int signal = 0;  ///< the signal that ended it, or 0

  bool success() const { return code == 0 && signal == 0; }
  /// The number a shell reports: the code, or 128 plus the signal.
  int shell_status() const { return signal != 0 ? 128 + signal : code; }
  /// "exited with status 3", "was killed by SIGKILL"
  std::string to_string() const;

  bool operator==(const ExitStatus&) const = default;
};

/// "SIGTERM"; a number if the signal has no name.
std::string signal_name(int number);

/// A process group whose members outlive neither this process, however it ends, nor this object: a
/// helper process waits for the end of a pipe and then kills the group. This also ends what members
/// have started, unless it has moved to another process group. (The signal that Linux can send when
/// a parent dies does not reach that far, and posix_spawn cannot request it.) Thread-safe.
class ProcessGuard {
 public:
  /// Throws kUnavailable if the system refuses to start the helper.
  ProcessGuard();
  ~ProcessGuard();  // Kills the members that are left.
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  pid_t group() const { return helper_; }
  /// Sends the signal to every member.
  void signal(int number) const;

 private:
  Pipe pipe_;
  pid_t helper_ = -1;  // leads the group, so that its number cannot be given to another
};

/// What to start, and what it inherits. A plain value.
struct ProcessOptions {
  /// The program, which is searched for in the PATH unless it has a slash, and its arguments.
  std::vector<std::string> command;
  /// Environment variables that are added to those of this process, or replace them.
  std::map<std::string, std::string> environment = {};
  /// Descriptors of this process, by the number that each has in the program. By default standard
  /// input is empty, and standard output and error are those of this process.
  std::map<int, int> descriptors = {};
};

/// A program that runs. Not thread-safe, except for id() and signal().
class Process {
 public:
  /// Throws kNotFound if the program cannot be executed, kUnavailable if the system refuses to
  /// start a process. The guard must outlive this object.
  Process(const ProcessOptions& options, const ProcessGuard& guard);
  ~Process();  // Kills it if it still runs.
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  /// A descriptor that poll(2) reports as readable once the process has ended.
  int end_descriptor() const { return end_.get(); }
  /// Does nothing if the process has ended.
  void signal(int number) const;
  /// Returns nothing if the process still runs at the deadline.
  std::optional<ExitStatus> wait(Deadline deadline);

 private:
  pid_t id_ = -1;
  Descriptor end_;  // a pidfd: unlike the number, it never names another process
  std::optional<ExitStatus> status_;
};

/// The milliseconds until the deadline as poll(2) takes them: rounded up, and -1 for forever.
int poll_timeout(Deadline deadline);

}  // namespace tutti::cli
