// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes: this program is started again, with a socket to the test that gives it tasks
// and exchanges texts while a group is made. Starting takes half a second, so a process runs many
// tasks; one that died is replaced.

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/process.h"
#include "tests/group/network_hosts.h"
#include "tests/group/rank_runs.h"
#include "tests/support/log_capture.h"
#include "tests/support/programs.h"

namespace tutti::group_tests {
namespace {

constexpr int kTaskSocket = 3;  // of a rank process
constexpr const char* kArgument = "--run-as-rank";
#if defined(__SANITIZE_ADDRESS__)
constexpr int kLimitMilliseconds = 240'000;
#else
constexpr int kLimitMilliseconds = 60'000;
#endif

// ---- messages: words with their lengths

using Words = std::vector<std::string>;

bool write_all(int descriptor, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = send(descriptor, at, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int descriptor, void* data, size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = recv(descriptor, at, size, 0);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool write_words(int descriptor, const Words& words) {
  std::string bytes;
  const auto add = [&bytes](uint64_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  add(words.size());
  for (const std::string& each : words) {
    add(each.size());
    bytes += each;
  }
  return write_all(descriptor, bytes.data(), bytes.size());
}

bool read_words(int descriptor, Words* words) {
  uint64_t count = 0;
  if (!read_all(descriptor, &count, sizeof count)) return false;
  words->assign(count, "");
  for (std::string& each : *words) {
    uint64_t size = 0;
    if (!read_all(descriptor, &size, sizeof size)) return false;
    each.resize(size);
    if (!read_all(descriptor, each.data(), size)) return false;
  }
  return true;
}

Words to_words(const RankTask& task) {
  return {task.backend,
          task.scenario,
          task.options.argument,
          std::to_string(task.options.timeout.count()),
          std::to_string(task.rank),
          std::to_string(task.size),
          std::to_string(task.epoch)};
}

RankTask task_from(const Words& words) {
  RankTask task;
  task.backend = words.at(0);
  task.scenario = words.at(1);
  task.options.argument = words.at(2);
  task.options.timeout = std::chrono::milliseconds(std::stoll(words.at(3)));
  task.rank = std::stoi(words.at(4));
  task.size = std::stoi(words.at(5));
  task.epoch = std::stoull(words.at(6));
  return task;
}

Words to_words(const Outcome& outcome, const std::string& log) {
  Words words = {"done", log, outcome.error ? std::to_string(static_cast<int>(*outcome.error)) : "",
                 outcome.error_text, std::to_string(outcome.failures.size())};
  words.insert(words.end(), outcome.failures.begin(), outcome.failures.end());
  for (const auto& [name, value] : outcome.notes) {
    words.push_back(name);
    words.push_back(std::to_string(value));
  }
  return words;
}

Outcome outcome_from(const Words& words) {
  Outcome outcome;
  if (!words.at(2).empty()) outcome.error = static_cast<ErrorCode>(std::stoi(words.at(2)));
  outcome.error_text = words.at(3);
  const size_t failures = std::stoul(words.at(4));
  for (size_t i = 0; i < failures; ++i) outcome.failures.push_back(words.at(5 + i));
  for (size_t i = 5 + failures; i + 1 < words.size(); i += 2) {
    outcome.notes[words[i]] = std::stoll(words[i + 1]);
  }
  return outcome;
}

// ---- in the process of a rank

int serve() {
  Words words;
  while (read_words(kTaskSocket, &words)) {
    test::LogCapture log(LogLevel::kWarning);
    const Outcome outcome = run_task(task_from(words), [](const std::string& mine) {
      Words texts;
      if (!write_words(kTaskSocket, {"gather", mine}) || !read_words(kTaskSocket, &texts)) {
        throw Error(ErrorCode::kUnavailable, "the test has ended");
      }
      return texts;
    });
    if (!write_words(kTaskSocket, to_words(outcome, log.text()))) break;
  }
  return 0;
}

const test::Program kRankProgram(kArgument, serve);

// ---- in the test

// Both ends of a connection within this machine.
struct SocketPair {
  cli::Descriptor here;
  cli::Descriptor there;

  SocketPair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here = cli::Descriptor(ends[0]);
    there = cli::Descriptor(ends[1]);
  }
};

class RankProcess {
 public:
  /// `host` is -1, or the number of one of NetworkHosts.
  RankProcess(int host, const cli::ProcessGuard& guard)
      : host_(host),
        process_({.command = command(host), .descriptors = {{kTaskSocket, sockets_.there.get()}}},
                 guard) {
    sockets_.there.reset();
  }
  ~RankProcess() {
    sockets_.here.reset();  // It then ends.
    if (must_kill_) process_.signal(SIGKILL);
    const auto status =
        process_.wait(Deadline::after(std::chrono::milliseconds(kLimitMilliseconds)));
    EXPECT_TRUE(status.has_value()) << "a rank process does not end";
    if (!status || must_kill_ || expected_death_) return;
    EXPECT_TRUE(status->success()) << "a rank process " << status->to_string();
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int socket() const { return sockets_.here.get(); }
  int host() const { return host_; }
  void kill_at_end() { must_kill_ = true; }
  void has_died() { expected_death_ = true; }

 private:
  static std::vector<std::string> command(int host) {
    std::vector<std::string> words;
    if (host >= 0) words = {"ip", "netns", "exec", NetworkHosts::name(host)};
    words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
    words.emplace_back(kArgument);
    return words;
  }

  const int host_;
  SocketPair sockets_;
  cli::Process process_;
  bool must_kill_ = false;
  bool expected_death_ = false;
};

// Keeps processes between runs.
class RankPool : public ::testing::Environment {
 public:
  std::unique_ptr<RankProcess> take(int host) {
    if (host >= 0 && hosts_ == nullptr) hosts_ = std::make_unique<NetworkHosts>();
    const auto fits = [host](const auto& each) { return each->host() == host; };
    const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
    if (found == idle_.end()) {
      if (guard_ == nullptr) guard_ = std::make_unique<cli::ProcessGuard>();
      return std::make_unique<RankProcess>(host, *guard_);
    }
    std::unique_ptr<RankProcess> process = std::move(*found);
    idle_.erase(found);
    return process;
  }
  void give(std::unique_ptr<RankProcess> process) { idle_.push_back(std::move(process)); }
  void TearDown() override {
    idle_.clear();
    guard_.reset();
    hosts_.reset();
  }

 private:
  std::unique_ptr<NetworkHosts> hosts_;
  std::unique_ptr<cli::ProcessGuard> guard_;
  std::vector<std::unique_ptr<RankProcess>> idle_;
};

RankPool& pool() {
  static auto* const pool = new RankPool;  // owned by GoogleTest
  return *pool;
}
const auto* const kPoolEnds = ::testing::AddGlobalTestEnvironment(&pool());

// One run of a scenario: exchanges texts and collects outcomes.
class ProcessRun {
 public:
  explicit ProcessRun(const std::vector<RankTask>& tasks)
      : processes_(tasks.size()), texts_(tasks.size()), done_(tasks.size()) {
    result_.ranks.resize(tasks.size());
    for (size_t r = 0; r < tasks.size(); ++r) {
      const Backend& backend = backend_named(tasks[r].backend);
      const bool has_hosts = backend.ranks_per_host > 0;
      processes_[r] = pool().take(has_hosts ? backend.host_of(static_cast<int>(r)) : -1);
      if (!write_words(processes_[r]->socket(), to_words(tasks[r]))) end(r, true);
    }
  }

  RunResult run() {
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(kLimitMilliseconds);
    while (left() > 0) {
      if (std::chrono::steady_clock::now() > limit) {
        stop();
        break;
      }
      poll_once();
    }
    for (auto& each : processes_) {
      if (each != nullptr) pool().give(std::move(each));
    }
    return std::move(result_);
  }

 private:
  size_t left() const { return static_cast<size_t>(std::count(done_.begin(), done_.end(), false)); }

  void poll_once() {
    std::vector<pollfd> polled;
    std::vector<size_t> ranks;
    for (size_t r = 0; r < done_.size(); ++r) {
      if (done_[r]) continue;
      polled.push_back({processes_[r]->socket(), POLLIN, 0});
      ranks.push_back(r);
    }
    poll(polled.data(), polled.size(), 1000);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents != 0) receive(ranks[i]);
    }
  }

  void receive(size_t rank) {
    Words words;
    if (!read_words(processes_[rank]->socket(), &words) || words.empty()) return end(rank, true);
    if (words[0] == "gather") {
      texts_[rank] = words.at(1);
      if (++gathered_ < texts_.size()) return;
      gathered_ = 0;
      for (const auto& each : processes_) {
        if (each != nullptr) write_words(each->socket(), texts_);
      }
      return;
    }
    result_.ranks[rank] = outcome_from(words);
    result_.log += words.at(1);
    end(rank, false);
  }

  void end(size_t rank, bool died) {
    done_[rank] = true;
    if (!died) return;
    result_.ranks[rank].died = true;
    processes_[rank]->has_died();
    processes_[rank].reset();
  }

  void stop() {
    for (size_t r = 0; r < done_.size(); ++r) {
      if (done_[r]) continue;
      ADD_FAILURE() << "rank " << r << " was not done after " << kLimitMilliseconds << " ms";
      processes_[r]->kill_at_end();
      end(r, true);
    }
  }

  std::vector<std::unique_ptr<RankProcess>> processes_;
  Words texts_;
  size_t gathered_ = 0;
  std::vector<bool> done_;
  RunResult result_;
};

}  // namespace

RunResult run_in_processes(const std::vector<RankTask>& tasks) { return ProcessRun(tasks).run(); }

}  // namespace tutti::group_tests
