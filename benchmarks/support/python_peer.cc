// SPDX-License-Identifier: Apache-2.0

#include "benchmarks/support/python_peer.h"

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <torch/version.h>

#include "cli/process.h"

namespace bench {

struct PythonPeer::Process {
  tutti::cli::Pipe questions;
  tutti::cli::Pipe answers;
  const tutti::cli::ProcessGuard guard;
  tutti::cli::Process process;
  std::FILE* to = nullptr;
  std::FILE* from = nullptr;

  // Uses the full path, so that Python finds itself when it starts others.
  Process(const std::string& python, const std::string& script)
      : process({.command = {python, script},
                 .descriptors = {{STDIN_FILENO, questions.read_end.get()},
                                 {STDOUT_FILENO, answers.write_end.get()}}},
                guard) {
    std::signal(SIGPIPE, SIG_IGN);
    questions.read_end.reset();
    answers.write_end.reset();
    to = fdopen(questions.write_end.release(), "w");
    from = fdopen(answers.read_end.release(), "r");
  }
  ~Process() {
    std::fclose(to);
    std::fclose(from);
    process.wait(tutti::Deadline::after(std::chrono::seconds(60)));
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  std::string ask(const std::string& question) {
    if (!question.empty()) {
      std::fputs((question + "\n").c_str(), to);
      std::fflush(to);
    }
    std::array<char, 256> line = {};
    return std::fgets(line.data(), line.size(), from) != nullptr ? line.data() : "";
  }
};

namespace {

// Tries that of `make install-bench-deps`, then the system's, for which Debian has a torch.
std::vector<std::string> pythons() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  std::string cache = variable("TUTTI_CACHE");
  if (cache.empty() && !variable("XDG_CACHE_HOME").empty()) {
    cache = variable("XDG_CACHE_HOME") + "/tutti";
  }
  if (cache.empty()) cache = variable("HOME") + "/.cache/tutti";
  return {cache + "/pytorch-" TORCH_VERSION "/bin/python", "/usr/bin/python3"};
}

// "2.15.0" of "2.15.0+cu130"
std::string release(const std::string& version) { return version.substr(0, version.find('+')); }

}  // namespace

PythonPeer::PythonPeer(const std::string& script, bool smoke) {
  if (smoke) return;
  for (const std::string& python : pythons()) {
    if (access(python.c_str(), X_OK) != 0) continue;
    auto process = std::make_shared<Process>(python, std::string(TUTTI_BENCH_FOLDER "/") + script);
    const std::string answer = process->ask("");
    if (answer.rfind("ready ", 0) != 0) continue;
    const std::string version = answer.substr(6, answer.find('\n') - 6);
    if (release(version) != release(TORCH_VERSION)) {
      std::printf("peer in Python: %s has PyTorch %s, and this is LibTorch %s\n", python.c_str(),
                  version.c_str(), TORCH_VERSION);
      continue;
    }
    std::printf("peer in Python: PyTorch %s\n", version.c_str());
    process_ = std::move(process);
    return;
  }
  std::printf("no peer in Python: no PyTorch %s was found (make install-bench-deps)\n",
              TORCH_VERSION);
}

PythonPeer::~PythonPeer() = default;

std::string PythonPeer::ask(const std::string& line) const {
  std::string answer = process_->ask(line);
  Harness::check(!answer.empty(), "the peer in Python has stopped");
  return answer;
}

double PythonPeer::seconds_of(const std::string& case_name, int64_t number) const {
  const std::string answer = ask(case_name + " " + std::to_string(number));
  char* cpu = nullptr;
  const double seconds = std::strtod(answer.c_str(), &cpu);
  count_as_own(std::strtod(cpu, nullptr));
  return seconds;
}

void PythonPeer::add(const std::string& case_name, int64_t rows,
                     std::vector<Variant>& variants) const {
  if (!is_there()) return;
  variants.push_back({"python", [this, case_name, rows](int64_t iterations) {
                        double seconds = 0;
                        for (int64_t i = 0; i < iterations; ++i) {
                          seconds += seconds_of(case_name, rows);
                        }
                        return seconds;
                      }});
}

void PythonPeer::add_steps(const std::string& case_name, const std::string& variant_name,
                           double target, std::vector<Variant>& variants) const {
  if (!is_there()) return;
  variants.push_back(
      {variant_name,
       [this, case_name](int64_t iterations) { return seconds_of(case_name, iterations); },
       /*is_limit=*/false, target});
}

}  // namespace bench
