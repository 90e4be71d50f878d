// SPDX-License-Identifier: Apache-2.0

#include "cli/process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace tutti::cli {
namespace {

constexpr int kFirstFreeDescriptor = 64;  // above the numbers that programs ask for

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> lines;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string line = *each;
    if (!changes.contains(line.substr(0, line.find('=')))) lines.push_back(line);
  }
  for (const auto& [name, value] : changes) {
    lines.push_back(name + '=');
    lines.back() += value;
  }
  return lines;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& each : texts) pointers.push_back(each.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The arguments of posix_spawn.
class SpawnArguments {
 public:
  SpawnArguments() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
  }
  ~SpawnArguments() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnArguments(const SpawnArguments&) = delete;
  SpawnArguments& operator=(const SpawnArguments&) = delete;

  // Copies come first, so that no number is overwritten before it is read.
  void set_descriptors(const std::map<int, int>& descriptors) {
    for (const auto& [there, here] : descriptors) {
      copies_.emplace_back(fcntl(here, F_DUPFD_CLOEXEC, kFirstFreeDescriptor));
      if (!copies_.back().is_open()) {
        throw Error(ErrorCode::kUnavailable, message("Process: descriptor ", here,
                                                     " cannot be passed on: ", strerror(errno)));
      }
      posix_spawn_file_actions_adddup2(&actions_, copies_.back().get(), there);
    }
  }
  void open_null(int there, int flags) {
    posix_spawn_file_actions_addopen(&actions_, there, "/dev/null", flags, 0);
  }

  // Group 0 is a new one. The program starts with this mask, and is ended by SIGPIPE even if this
  // process ignores it.
  void set_group_and_mask(pid_t group, const sigset_t& mask) {
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setpgroup(&attributes_, group);
    posix_spawnattr_setsigmask(&attributes_, &mask);
    posix_spawnattr_setsigdefault(&attributes_, &defaults);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }

  pid_t spawn(std::vector<std::string> command,
              const std::map<std::string, std::string>& environment) {
    std::vector<std::string> lines = environment_with(environment);
    pid_t id = -1;
    const int error = posix_spawnp(&id, command.at(0).c_str(), &actions_, &attributes_,
                                   pointers_to(command).data(), pointers_to(lines).data());
    if (error == 0) return id;
    const bool lacks = error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
    throw Error(lacks ? ErrorCode::kUnavailable : ErrorCode::kNotFound,
                message("cannot start ", in_quotes(command[0]), ": ", std::strerror(error)));
  }

 private:
  posix_spawn_file_actions_t actions_ = {};
  posix_spawnattr_t attributes_ = {};
  std::vector<Descriptor> copies_;
};

}  // namespace

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name != nullptr ? std::string("SIG") + name : message("signal ", number);
}

std::string ExitStatus::to_string() const {
  return signal != 0 ? "was killed by " + signal_name(signal)
                     : message("exited with status ", code);
}

int poll_timeout(Deadline deadline) {
  if (deadline.when() == Deadline::Clock::time_point::max()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.when() - Deadline::Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
}

// The helper blocks all signals, so that only the end of the pipe, or SIGKILL, ends it.
ProcessGuard::ProcessGuard() {
  SpawnArguments arguments;
  arguments.set_descriptors({{STDIN_FILENO, pipe_.read_end.get()}});
  arguments.open_null(STDOUT_FILENO, O_WRONLY);  // Readers of our output must not wait for it.
  arguments.open_null(STDERR_FILENO, O_WRONLY);
  sigset_t all;
  sigfillset(&all);
  arguments.set_group_and_mask(0, all);
  helper_ = arguments.spawn({"/bin/sh", "-c", "read -r line; kill -s KILL 0", "tutti-guard"}, {});
  pipe_.read_end.reset();
}

ProcessGuard::~ProcessGuard() {
  signal(SIGKILL);
  while (waitpid(helper_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessGuard::signal(int number) const { kill(-helper_, number); }

Process::Process(const ProcessOptions& options, const ProcessGuard& guard) {
  if (options.command.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "Process: the command is empty");
  }
  SpawnArguments arguments;
  arguments.set_descriptors(options.descriptors);
  // A member of a background group that read from a terminal would be stopped.
  if (!options.descriptors.contains(STDIN_FILENO)) arguments.open_null(STDIN_FILENO, O_RDONLY);
  sigset_t none;
  sigemptyset(&none);
  arguments.set_group_and_mask(guard.group(), none);
  id_ = arguments.spawn(options.command, options.environment);
  end_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, id_, 0)));
  if (end_.is_open()) return;
  const int error = errno;
  kill(id_, SIGKILL);
  waitpid(id_, nullptr, 0);
  throw Error(
      ErrorCode::kUnavailable,
      message("Process: pidfd_open, which Linux has since 5.3, failed: ", std::strerror(error)));
}

Process::~Process() {
  signal(SIGKILL);
  wait(Deadline::forever());
}

void Process::signal(int number) const {
  syscall(SYS_pidfd_send_signal, end_.get(), number, nullptr, 0);
}

std::optional<ExitStatus> Process::wait(Deadline deadline) {
  while (!status_.has_value()) {
    pollfd end{end_.get(), POLLIN, 0};
    const int ready = poll(&end, 1, poll_timeout(deadline));
    if (ready == 0 && deadline.passed()) return std::nullopt;
    if (ready <= 0) continue;
    int status = 0;
    if (waitpid(id_, &status, 0) == id_) {
      status_ = WIFSIGNALED(status) ? ExitStatus{.signal = WTERMSIG(status)}
                                    : ExitStatus{.code = WEXITSTATUS(status)};
    } else if (errno != EINTR) {
      throw Error(ErrorCode::kInternal,
                  message("Process: another part of this program has waited for process ", id_));
    }
  }
  return status_;
}

}  // namespace tutti::cli
