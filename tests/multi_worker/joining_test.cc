// SPDX-License-Identifier: Apache-2.0
//
// How workers join: how long they wait, and how they share the cores of a machine.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"
#include "tutti/cluster/resolvers/simple.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/group/join.h"
#include "tutti/group/rendezvous/rendezvous.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"
#include "tutti/testing/in_process_cluster.h"

#include "tests/support/expect_error.h"
#include "tests/support/free_addresses.h"
#include "tests/support/scoped_environment.h"

namespace tutti::joining_test {

constexpr char kSecret[] = "a secret of the tests";

TEST(WorkerRendezvous, EndsAtOnceIfTheFirstWorkerEndsJustAfterIt) {
  const rpc::SecurityOptions security = {.job_secret = kSecret};
  rpc::Listener first({.security = security});
  // The first worker gives an address that does not listen, as if it had ended in between.
  const std::string gone = rpc::Listener({.security = security}).address();
  const Thread rank_0("tutti/rank0", [&] {
    RendezvousOptions options{.listener = first};
    options.addresses = {gone, ""};
    options.job = "joining";
    rendezvous(options);
  });
  internal::WorkerRendezvousOptions options;
  options.rank = 1;
  options.names = {"/job:worker/task:0", "/job:worker/task:1"};
  options.addresses = {first.address(), ""};
  options.job = "joining";
  options.security = security;
  options.join_timeout = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TUTTI_ERROR(internal::join_workers(options), ErrorCode::kUnavailable,
                     "/job:worker/task:0 (" + gone + ")", "joined the rendezvous, but has ended");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(MultiWorkerMirroredStrategy, TakesItsTimeoutsFromTheEnvironment) {
  const auto alone_in_a_cluster_of_two = [](const MultiWorkerMirroredStrategyOptions& options) {
    const std::string own = rpc::Listener({.security = {.job_secret = kSecret}}).address();
    const auto resolver = std::make_shared<SimpleClusterResolver>(
        ClusterSpec(
            std::map<std::string, std::vector<std::string>>{{"worker", {own, "127.0.0.1:1"}}}),
        SimpleClusterResolverOptions{.task_type = "worker", .task_id = 0});
    const MultiWorkerMirroredStrategy strategy(resolver, options);
  };
  const test::ScopedEnvironment environment(
      {{"TUTTI_JOIN_TIMEOUT", "1"}, {"TUTTI_JOB_SECRET", kSecret}});
  EXPECT_TUTTI_ERROR(alone_in_a_cluster_of_two({}), ErrorCode::kDeadlineExceeded,
                     "did not join within 1 s");
  EXPECT_TUTTI_ERROR(alone_in_a_cluster_of_two({.join_timeout = std::chrono::milliseconds(200)}),
                     ErrorCode::kDeadlineExceeded, "did not join within 0.");
  const test::ScopedEnvironment bad(
      {{"TUTTI_JOIN_TIMEOUT", "soon"}, {"TUTTI_JOB_SECRET", kSecret}});
  EXPECT_TUTTI_ERROR(alone_in_a_cluster_of_two({}), ErrorCode::kInvalidArgument,
                     "TUTTI_JOIN_TIMEOUT is \"soon\"");
}

// Counts how often the cluster is resolved, which costs requests on some platforms.
class CountingResolver : public SimpleClusterResolver {
 public:
  using SimpleClusterResolver::SimpleClusterResolver;

  ClusterSpec cluster_spec() const override {
    ++calls;
    return SimpleClusterResolver::cluster_spec();
  }

  mutable int calls = 0;
};

TEST(MultiWorkerMirroredStrategy, ResolvesTheClusterOnce) {
  const ClusterSpec spec{{"worker", test::free_addresses(2)}};
  const auto worker = [&](int task) {
    const auto resolver = std::make_shared<CountingResolver>(
        spec, SimpleClusterResolverOptions{.task_type = "worker", .task_id = task});
    const MultiWorkerMirroredStrategy strategy(resolver, {.devices = {"CPU:0"}});
    EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
    EXPECT_EQ(resolver->calls, 1);
    EXPECT_EQ(strategy.cluster_resolver(), resolver.get());
  };
  const Thread other("tutti/worker1", [&] { worker(1); });
  worker(0);
}

TEST(InProcessCluster, DividesTheCoresAmongItsWorkers) {
  for (const int workers : {1, 2, 3}) {
    InProcessCluster(workers, {.devices = {"CPU:0", "CPU:1"}}).run([&](const Strategy& strategy) {
      strategy.run(
          [&] { EXPECT_EQ(at::get_num_threads(), std::max(1, usable_cores() / (2 * workers))); });
    });
  }
  InProcessCluster(2, {.runner = {.threads_per_replica = 3}}).run([](const Strategy& strategy) {
    strategy.run([] { EXPECT_EQ(at::get_num_threads(), 3) << "what the program says wins"; });
  });
}

}  // namespace tutti::joining_test
