// SPDX-License-Identifier: Apache-2.0
//
// Small programs for the tests of processes, what they print, and whether they still run.

#pragma once

#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/process.h"
#include "tests/support/eventually.h"

namespace tutti::cli::test {

using tutti::test::eventually;

/// A command that runs a script; $1 and so on are the arguments.
inline std::vector<std::string> shell(const std::string& script) { return {"sh", "-c", script}; }

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

/// False also for a process that has ended and whose parent does not know it yet.
inline bool is_running(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t end_of_name = text.rfind(") ");
  return end_of_name != std::string::npos && text[end_of_name + 2] != 'Z';
}

/// A file without a name, for what a program prints.
class OutputFile {
 public:
  int descriptor() const { return file_.get(); }
  std::string text() const {
    std::string text(static_cast<size_t>(lseek(file_.get(), 0, SEEK_END)), '\0');
    return pread(file_.get(), text.data(), text.size(), 0) == std::ssize(text) ? text
                                                                               : "unreadable";
  }

 private:
  Descriptor file_{memfd_create("output", MFD_CLOEXEC)};
};

/// Reads until the text has come, the other end is closed or 20 seconds have passed. Returns all
/// that was read.
inline std::string read_until(const Descriptor& from, const std::string& expected) {
  std::string text;
  const Deadline deadline = soon();
  std::array<char, 4096> bytes = {};
  while (text.find(expected) == std::string::npos) {
    pollfd polled{from.get(), POLLIN, 0};
    if (poll(&polled, 1, poll_timeout(deadline)) <= 0) break;
    const ssize_t n = read(from.get(), bytes.data(), bytes.size());
    if (n <= 0) break;
    text.append(bytes.data(), static_cast<size_t>(n));
  }
  return text;
}

/// The number after `label` in the text.
inline pid_t number_after(const std::string& text, const std::string& label) {
  const size_t at = text.find(label);
  return at == std::string::npos ? -1 : std::stoi(text.substr(at + label.size()));
}

}  // namespace tutti::cli::test
