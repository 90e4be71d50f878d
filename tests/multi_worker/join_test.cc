// SPDX-License-Identifier: Apache-2.0
//
// Workers that join the rendezvous and are gone before all are connected.

#include "tutti/group/join.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/group/rendezvous/rendezvous.h"
#include "tutti/rpc/listener.h"

#include "tests/multi_worker/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/free_addresses.h"

namespace tutti::worker_rendezvous_test {

TEST(WorkerRendezvous, RankZeroDoesNotWaitForeverForAWorkerThatCameAndDied) {
  const std::vector<std::string> addresses = test::free_addresses(2);
  const rpc::SecurityOptions security{.job_secret = "a secret of thirty-two bytes 123"};
  std::thread dies([&] {
    rpc::Listener listener({.address = addresses[1], .security = security});
    RendezvousOptions options{.listener = listener,
                              .rank = 1,
                              .addresses = addresses,
                              .job = "train",
                              .timeout = std::chrono::seconds(20),
                              .channel = {.security = security}};
    EXPECT_EQ(rendezvous(options).addresses.size(), 2U);
  });
  internal::WorkerRendezvousOptions options;
  options.rank = 0;
  options.names = {"/job:worker/task:0", "/job:worker/task:1"};
  options.addresses = addresses;
  options.own_address = addresses[0];
  options.job = "train";
  options.security = security;
  // Once all have joined, the limit is at least some seconds.
  options.join_timeout = std::chrono::seconds(3);
  EXPECT_TUTTI_ERROR(internal::join_workers(options), ErrorCode::kDeadlineExceeded,
                     "did not hear from /job:worker/task:1 (" + addresses[1] + ")");
  dies.join();
}

}  // namespace tutti::worker_rendezvous_test
