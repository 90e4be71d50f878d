// SPDX-License-Identifier: Apache-2.0
//
// Runs a scenario on every rank of a group, where ranks are threads or processes of any backend. A
// scenario is a function with a name, since a closure cannot be sent to a different process; it
// reports through its Rank, not through GoogleTest, which does not see other processes.
//
//   const Scenario kMeet("Meet", [](Rank& rank) {
//     rank.lane().barrier({.name = "meet"}, rank.lane().deadline())->wait();
//   });
//   run_ranks(backend, 3, kMeet).expect_success();

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/base/error.h"
#include "tutti/group/connect.h"

namespace tutti::group_tests {

/// How to connect ranks. A new backend is a line in rank_runs.cc.
struct Backend {
  std::string name;
  bool processes = false;  ///< If not, ranks are threads of the test.
  std::shared_ptr<WorkerGroup> (*make)(const GroupOptions& options) = nullptr;
  bool only_reductions = false;  ///< Only reductions differ from those of a different backend.
  int ranks_per_host = 0;        ///< For processes on several hosts (network_hosts.h); 0: one host.

  int host_of(int rank) const { return rank / ranks_per_host; }
};

const std::vector<Backend>& all_backends();
const Backend& backend_named(const std::string& name);

inline std::ostream& operator<<(std::ostream& out, const Backend& backend) {
  return out << backend.name;
}

/// What a rank reports after a scenario.
struct Outcome {
  bool died = false;               ///< Its process ended before the scenario did.
  std::optional<ErrorCode> error;  ///< What left the scenario.
  std::string error_text;
  std::vector<std::string> failures;
  std::map<std::string, int64_t> notes;
};

/// A rank while it runs a scenario. Used by one thread at a time, unless stated otherwise.
class Rank {
 public:
  Rank(std::shared_ptr<WorkerGroup> group, bool process, std::string argument, Outcome& outcome)
      : group_(std::move(group)),
        process_(process),
        argument_(std::move(argument)),
        outcome_(outcome) {}

  int index() const { return group_->rank(); }
  int size() const { return group_->size(); }
  bool is_process() const { return process_; }
  const std::string& argument() const { return argument_; }
  WorkerGroup& group() { return *group_; }
  Lane& lane(LaneKind which = LaneKind::kCollectives) { return group_->lane(which); }

  void expect(bool condition, const std::string& what) {
    if (!condition && outcome_.failures.size() < 5) outcome_.failures.push_back(what);
  }
  void note(const std::string& name, int64_t value) { outcome_.notes[name] = value; }

  /// Waits until all ranks have called it. It has its own lane and its own deadline.
  void meet();

  /// Ends the process of this rank like a crash; a thread leaves the group instead, and must not
  /// use it any more.
  void die();

 private:
  std::shared_ptr<WorkerGroup> group_;
  bool process_;
  std::string argument_;
  Outcome& outcome_;
};

/// Bytes to one rank, which receives them under the same name.
inline std::unique_ptr<Transfer> send(Lane& lane, const Operation& operation, int to,
                                      std::span<const std::byte> bytes) {
  return lane.exchange(operation, {{to, bytes}}, {}, lane.deadline());
}
inline std::unique_ptr<Transfer> receive(Lane& lane, const Operation& operation, int from,
                                         std::span<std::byte> bytes) {
  return lane.exchange(operation, {}, {{from, bytes}}, lane.deadline());
}

/// Nanoseconds of the steady clock, which processes share.
int64_t steady_now();

/// Must be a static object: processes find it by its name.
class Scenario {
 public:
  using Body = void (*)(Rank& rank);

  Scenario(const char* name, Body body);
  static const Scenario& named(const std::string& name);

  const std::string& name() const { return name_; }
  void run(Rank& rank) const { body_(rank); }

 private:
  const std::string name_;
  const Body body_;
  const Scenario* const next_;
};

struct RunResult {
  std::vector<Outcome> ranks;
  std::string log;  ///< Lines of all ranks.

  /// No rank threw, died or complained.
  void expect_success() const;
  /// No rank complained; what they threw is ignored.
  void expect_no_failures() const;
};

struct RunOptions {
  std::string argument = {};
  std::chrono::milliseconds timeout{20'000};  ///< Limits every operation.
};

/// Makes a group of `size` ranks and runs the scenario on each.
RunResult run_ranks(const Backend& backend, int size, const Scenario& scenario,
                    const RunOptions& options = {});

/// The name of a rank in messages.
std::string rank_name(int rank);

// ---- for the implementations

/// What one rank is asked to do.
struct RankTask {
  std::string backend;
  std::string scenario;
  RunOptions options;
  int rank = 0;
  int size = 1;
  uint64_t epoch = 0;
};

/// Connects the rank and runs the scenario; nothing is thrown.
Outcome run_task(const RankTask& task,
                 const std::function<std::vector<std::string>(const std::string&)>& gather);

/// Runs each task in a process of its own (rank_processes.cc).
RunResult run_in_processes(const std::vector<RankTask>& tasks);

/// GoogleTest's parameters and their names.
std::vector<Backend> transfer_backends();
std::string parameter_name(const ::testing::TestParamInfo<Backend>& info);

}  // namespace tutti::group_tests
