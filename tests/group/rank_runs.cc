// SPDX-License-Identifier: Apache-2.0

#include "tests/group/rank_runs.h"

#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "tutti/group/shared_memory/shared_memory_mesh.h"

#include "tests/group/network_hosts.h"
#include "tests/support/log_capture.h"
#include "tests/support/thread_ranks.h"

namespace tutti::group_tests {
namespace {

constinit const Scenario* first_scenario = nullptr;

std::shared_ptr<WorkerGroup> make_host(const GroupOptions& options) {
  GroupOptions changed = options;
  changed.implementation = CommunicationImplementation::kHost;
  return make_group(changed);
}

// Connects ranks as make_group() would on machines with different numbers of cores, and with small
// parts of reductions, so that many of them are under way.
std::shared_ptr<WorkerGroup> make_host_by_hand(const GroupOptions& options, WaitMode mode,
                                               size_t chunk_bytes, size_t depth) {
  const auto size = static_cast<int>(options.names.size());
  auto mesh = std::make_shared<internal::SharedMemoryMesh>(internal::SharedMemoryMesh::Options{
      options.rank, size, options.epoch, kLanes, options.segment_bytes});
  mesh->connect(options.gather, Deadline::after(options.connect_timeout));
  WorkerGroup::Links links(kLanes);
  for (size_t c = 0; c < kLanes; ++c) {
    links[c].resize(static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) {
      if (r != options.rank) links[c][static_cast<size_t>(r)] = mesh->make_link(c, r);
    }
  }
  WorkerGroup::Options made;
  made.rank = options.rank;
  made.epoch = options.epoch;
  made.names = options.names;
  made.wait_mode = mode;
  made.chunk_bytes = chunk_bytes;
  made.depth = depth;
  made.timeout = options.timeout;
  auto arena = std::make_shared<internal::SegmentArena>(mesh->segment());
  return std::make_shared<WorkerGroup>(std::move(made), std::move(links), std::move(arena),
                                       std::move(mesh));
}

std::shared_ptr<WorkerGroup> make_grpc_at(const std::string& address, const GroupOptions& options) {
  GroupOptions changed = options;
  changed.remote = make_remote_links(
      options, {.address = address, .security = {.job_secret = "a secret of the tests"}});
  return make_group(changed);
}

std::shared_ptr<WorkerGroup> make_grpc(const GroupOptions& options) {
  GroupOptions changed = options;
  changed.implementation = CommunicationImplementation::kGrpc;
  return make_grpc_at(RemoteOptions().address, changed);
}

// The ranks find out which of them share memory.
std::shared_ptr<WorkerGroup> make_auto_on_hosts(const GroupOptions& options, int ranks_per_host) {
  const int host = options.rank / ranks_per_host;
  const auto group = make_grpc_at(NetworkHosts::address(host) + ":0", options);
  for (int r = 0; r < group->size(); ++r) {
    if (r == group->rank()) continue;
    const bool near = group->lane(LaneKind::kCollectives).link(r).shares_memory();
    if (near != (r / ranks_per_host == host)) {
      throw Error(ErrorCode::kInternal, message("rank ", options.rank, " reaches rank ", r,
                                                near ? " by shared memory" : " by gRPC"));
    }
  }
  return group;
}

[[maybe_unused]] std::shared_ptr<WorkerGroup> make_one_on_each_host(const GroupOptions& options) {
  return make_auto_on_hosts(options, 1);
}

[[maybe_unused]] std::shared_ptr<WorkerGroup> make_two_on_each_host(const GroupOptions& options) {
  return make_auto_on_hosts(options, 2);
}

[[maybe_unused]] std::shared_ptr<WorkerGroup> make_host_spin(const GroupOptions& options) {
  return make_host_by_hand(options, WaitMode::kSpin, 256 << 10, 1);
}

std::shared_ptr<WorkerGroup> make_host_deep(const GroupOptions& options) {
  return make_host_by_hand(options, WaitMode::kYield, 4 << 10, 6);
}

RunResult run_in_threads(const std::vector<RankTask>& tasks) {
  test::LogCapture log(LogLevel::kWarning);
  const auto size = static_cast<int>(tasks.size());
  TextGather texts("test", testing::thread_rank_options(0, size, 1).names);
  RunResult result;
  result.ranks.resize(tasks.size());
  std::vector<std::thread> threads;
  for (const RankTask& task : tasks) {
    threads.emplace_back([&] {
      result.ranks[static_cast<size_t>(task.rank)] = run_task(task, [&](const std::string& mine) {
        return texts.gather(static_cast<size_t>(task.rank), mine,
                            Deadline::after(std::chrono::seconds(60)));
      });
    });
  }
  for (std::thread& each : threads) each.join();
  result.log = log.text();
  return result;
}

uint64_t random_epoch() {
  uint64_t epoch = 0;
  EXPECT_EQ(getrandom(&epoch, sizeof epoch, 0), static_cast<ssize_t>(sizeof epoch));
  return epoch;
}

}  // namespace

const std::vector<Backend>& all_backends() {
  static const std::vector<Backend> backends = [] {
    std::vector<Backend> all = {
      {"HostThreads", false, make_host},
      {"HostThreadsDeep", false, make_host_deep, true},
      {"GrpcThreads", false, make_grpc},
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // they see one process
      {"HostThreadsSpin", false, make_host_spin},
      {"HostProcesses", true, make_host},
      {"GrpcProcesses", true, make_grpc},
      {"HostProcessesDeep", true, make_host_deep, true},
      {"GrpcHosts", true, make_one_on_each_host, false, 1},
      {"MixedHosts", true, make_two_on_each_host, true, 2},
#endif
    };
    // Processes on separate hosts show more, but need root.
    std::erase_if(all, [](const Backend& each) {
      return NetworkHosts::possible() ? each.name == "GrpcProcesses" : each.ranks_per_host > 0;
    });
    return all;
  }();
  return backends;
}

const Backend& backend_named(const std::string& name) {
  for (const Backend& each : all_backends()) {
    if (each.name == name) return each;
  }
  throw Error(ErrorCode::kNotFound, "no backend is named " + name);
}

std::vector<Backend> transfer_backends() {
  std::vector<Backend> backends = all_backends();
  std::erase_if(backends, [](const Backend& each) { return each.only_reductions; });
  return backends;
}

std::string parameter_name(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

int64_t steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string rank_name(int rank) { return message("/job:worker/task:", rank, " (test)"); }

void Rank::meet() {
  Lane& control = lane(LaneKind::kInput);
  control.barrier({.name = "meet"}, control.deadline(std::chrono::seconds(20)))->wait();
}

void Rank::die() {
  if (process_) kill(getpid(), SIGKILL);
  group_.reset();
}

Scenario::Scenario(const char* name, Body body) : name_(name), body_(body), next_(first_scenario) {
  first_scenario = this;
}

const Scenario& Scenario::named(const std::string& name) {
  for (const Scenario* each = first_scenario; each != nullptr; each = each->next_) {
    if (each->name_ == name) return *each;
  }
  throw Error(ErrorCode::kNotFound, "no scenario is named " + name);
}

void RunResult::expect_no_failures() const {
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const std::string& each : ranks[r].failures) ADD_FAILURE() << "rank " << r << ": " << each;
  }
}

void RunResult::expect_success() const {
  expect_no_failures();
  for (size_t r = 0; r < ranks.size(); ++r) {
    EXPECT_FALSE(ranks[r].died) << "rank " << r;
    EXPECT_FALSE(ranks[r].error.has_value()) << "rank " << r << ": " << ranks[r].error_text;
  }
}

Outcome run_task(const RankTask& task,
                 const std::function<std::vector<std::string>(const std::string&)>& gather) {
  Outcome outcome;
  try {
    GroupOptions options;
    options.rank = task.rank;
    for (int r = 0; r < task.size; ++r) options.names.push_back(rank_name(r));
    options.epoch = task.epoch;
    options.segment_bytes = size_t{256} << 20;
    options.timeout = task.options.timeout;
    options.connect_timeout = std::chrono::seconds(20);
    options.gather = gather;
    const Backend& backend = backend_named(task.backend);
    Rank rank(backend.make(options), backend.processes, task.options.argument, outcome);
    Scenario::named(task.scenario).run(rank);
  } catch (const Error& error) {
    outcome.error = error.code();
    outcome.error_text = error.what();
  } catch (const std::exception& error) {
    outcome.failures.push_back(message("not a tutti::Error: ", error.what()));
  }
  return outcome;
}

RunResult run_ranks(const Backend& backend, int size, const Scenario& scenario,
                    const RunOptions& options) {
  std::vector<RankTask> tasks;
  const uint64_t epoch = random_epoch();
  for (int r = 0; r < size; ++r) {
    tasks.push_back({backend.name, scenario.name(), options, r, size, epoch});
  }
  return backend.processes ? run_in_processes(tasks) : run_in_threads(tasks);
}

}  // namespace tutti::group_tests
