// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/support/process_group.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "benchmarks/support/framing.h"
#include "benchmarks/support/harness.h"

namespace bench {
namespace {

constexpr int kStartMilliseconds = 60'000;
constexpr std::chrono::seconds kEnd(60);

struct ScratchFolder {
  std::string path = "/tmp/tutti_bench_XXXXXX";

  ScratchFolder() { Harness::check(mkdtemp(path.data()) != nullptr, "no temporary folder"); }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

int listen_at(const std::string& path) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  Harness::check(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     listen(listener, 64) == 0,
                 "no socket at " + path);
  return listener;
}

bool readable(int socket) {
  pollfd each{socket, POLLIN, 0};
  return poll(&each, 1, kStartMilliseconds) > 0;
}

}  // namespace

const std::string& scratch_folder() {
  static const ScratchFolder folder;
  return folder.path;
}

std::string program_beside(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (self.parent_path() / name).string();
  return access(path.c_str(), X_OK) == 0 ? path : "";
}

ProcessGroup::ProcessGroup(std::string name, int size)
    : name_(std::move(name)), sockets_(static_cast<size_t>(size), -1) {}

std::unique_ptr<ProcessGroup> ProcessGroup::start(const std::string& name, int size,
                                                  const std::vector<Command>& commands) {
  static int number = 0;
  const std::string path = scratch_folder() + "/" + std::to_string(number++);
  const int listener = listen_at(path);
  std::unique_ptr<ProcessGroup> group(new ProcessGroup(name, size));
  const bool there = group->start_processes(commands, path) && group->accept_ranks(listener) &&
                     group->exchange_until_ready();
  close(listener);
  if (there) return group;
  std::printf("no peer %s: its %d processes did not start\n", name.c_str(), size);
  for (const auto& process : group->processes_) process->signal(SIGTERM);
  return nullptr;
}

ProcessGroup::~ProcessGroup() {
  for (const int socket : sockets_) {
    if (socket < 0) continue;
    send_frame(socket, "quit");
    close(socket);
  }
  for (const auto& process : processes_) process->wait(tutti::Deadline::after(kEnd));
}

bool ProcessGroup::start_processes(const std::vector<Command>& commands, const std::string& path) {
  for (Command command : commands) {
    command.push_back(path);
    try {
      processes_.push_back(std::make_unique<tutti::cli::Process>(
          tutti::cli::ProcessOptions{.command = std::move(command)}, guard_));
    } catch (const tutti::Error&) {
      return false;
    }
  }
  return true;
}

bool ProcessGroup::accept_ranks(int listener) {
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (!readable(listener)) return false;
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    std::string rank;
    if (!receive_frame(socket, &rank)) return false;
    sockets_[std::stoul(rank)] = socket;
  }
  return true;
}

// Sends every rank what every rank has sent, until all ranks report that they are ready.
bool ProcessGroup::exchange_until_ready() {
  while (true) {
    std::vector<std::string> texts(sockets_.size());
    for (size_t r = 0; r < sockets_.size(); ++r) {
      if (!readable(sockets_[r]) || !receive_frame(sockets_[r], &texts[r])) return false;
    }
    if (std::count(texts.begin(), texts.end(), "ready") == std::ssize(texts)) return true;
    for (const std::string& text : texts) send_all(text);
  }
}

void ProcessGroup::send_all(const std::string& text) {
  for (const int socket : sockets_) {
    Harness::check(send_frame(socket, text), name_ + " has stopped");
  }
}

std::vector<std::string> ProcessGroup::receive_all() {
  std::vector<std::string> texts(sockets_.size());
  for (size_t r = 0; r < sockets_.size(); ++r) {
    Harness::check(receive_frame(sockets_[r], &texts[r]), name_ + " has stopped");
  }
  return texts;
}

void ProcessGroup::open(const std::string& kind, int64_t count) {
  const std::string who =
      name_ + ", " + kind + ", " + std::to_string(count) + " numbers: a rank answered: ";
  for (const std::string& answer : answers_to_open(kind, count)) {
    Harness::check(answer == "ok", who + answer);
  }
}

std::vector<std::string> ProcessGroup::answers_to_open(const std::string& kind, int64_t count) {
  send_all("open " + kind + " " + std::to_string(count));
  return receive_all();
}

double ProcessGroup::run(const std::string& kind, int64_t iterations) {
  send_all("run " + kind + " " + std::to_string(iterations));
  double slowest = 0;
  for (const std::string& answer : receive_all()) {
    char* cpu = nullptr;
    slowest = std::max(slowest, std::strtod(answer.c_str(), &cpu));
    count_as_own(std::strtod(cpu, nullptr));
  }
  return slowest;
}

}  // namespace bench
