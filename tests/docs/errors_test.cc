// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/errors.md, and the messages that the page shows.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

#include "tests/support/expect_error.h"

namespace {

using tutti::ErrorCode;
using tutti::ReduceOp;

const std::vector<std::string> kDevices = {"CPU:0", "CPU:1"};

TEST(Errors, HaveACode) {
  std::string advice;
  // [snippet catch]
  try {
    tutti::MirroredStrategy strategy({"CPU:0", "CPU:99"});
  } catch (const tutti::Error& error) {
    if (error.code() != tutti::ErrorCode::kNotFound) throw;
    advice = error.what();  // names the device, what exists, and what to call
  }
  // [/snippet]
  EXPECT_EQ(advice,
            "MirroredStrategy: device \"CPU:99\" does not exist; this process has CPU:0, CPU:1, "
            "CPU:2, CPU:3, CPU:4, CPU:5, CPU:6, CPU:7, ... CPU:15. Call "
            "set_logical_cpu_devices(100) before creating the first strategy.");
}

TEST(Errors, KeepTheirTypeIfTheyAreTheUsers) {
  tutti::MirroredStrategy strategy(kDevices);
  int caught = -1;
  // [snippet own_type]
  struct BadRow : std::runtime_error {
    explicit BadRow(int which) : std::runtime_error("bad row"), row(which) {}
    int row;
  };
  try {
    strategy.run([] {
      tutti::ReplicaContext* replica = tutti::get_replica_context();
      if (replica->replica_id_in_sync_group() == 1) throw BadRow(17);
      replica->all_reduce(ReduceOp::kSum, 1.0);  // replica 0 is released here
    });
  } catch (const BadRow& error) {
    caught = error.row;  // the strategy can be used again
  }
  // [/snippet]
  EXPECT_EQ(caught, 17);
  EXPECT_EQ(strategy.run([] { return 1; })[1], 1);
}

TEST(Errors, ReachOtherReplicasAsACancellation) {
  tutti::MirroredStrategy strategy(kDevices);
  std::string text;
  try {
    strategy.run([&text] {
      tutti::ReplicaContext* replica = tutti::get_replica_context();
      if (replica->replica_id_in_sync_group() == 1) throw std::runtime_error("bad row 17");
      try {
        replica->all_reduce(ReduceOp::kSum, 1.0);
      } catch (const tutti::Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCancelled);
        text = error.what();
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "bad row 17");
  }
  EXPECT_EQ(text, "MirroredStrategy::run: released because replica 1 failed: bad row 17");
}

TEST(Errors, NameBothCallsOfReplicasThatDisagree) {
  tutti::MirroredStrategy strategy(kDevices);
  EXPECT_TUTTI_ERROR(strategy.run([] {
    tutti::ReplicaContext* replica = tutti::get_replica_context();
    const int64_t size = 2 + replica->replica_id_in_sync_group();
    replica->all_reduce(ReduceOp::kSum, torch::zeros({size}));
  }),
                     ErrorCode::kInvalidArgument,
                     "MirroredStrategy: replicas asked for different things at meeting point 1 of "
                     "this run: replica 0 called all_reduce(kSum) of float32[2] (errors_test.cc:",
                     "; replica 1 called all_reduce(kSum) of float32[3] (errors_test.cc:",
                     "Every replica must make the same calls in the same order, with equal types "
                     "and shapes (all_gather accepts different sizes along its axis).");
}

TEST(Errors, SayWhereEveryReplicaIsWhenACallIsMissing) {
  tutti::MirroredStrategy strategy(kDevices);
  EXPECT_TUTTI_ERROR(
      strategy.run([] {
        tutti::ReplicaContext* replica = tutti::get_replica_context();
        if (replica->replica_id_in_sync_group() == 0) replica->all_reduce(ReduceOp::kSum, 1.0);
      }),
      ErrorCode::kFailedPrecondition,
      "MirroredStrategy::run: replicas made different numbers of calls: replica 0 "
      "waits in all_reduce, meeting point 1 at errors_test.cc:",
      ", replica 1 has finished (last: no meeting point yet). Every replica must "
      "make the same merge_call, all_reduce and all_gather calls, and make and write the same "
      "variables, in the same order.");
}

TEST(Errors, SayWhatToCallInTheWrongContext) {
  tutti::MirroredStrategy strategy(kDevices);
  EXPECT_TUTTI_ERROR(
      strategy.run([&] { strategy.run([] {}); }), ErrorCode::kFailedPrecondition,
      "Strategy::run: called inside replica 0 of MirroredStrategy(CPU:0, CPU:1), but it requires "
      "cross-replica context. Use get_replica_context()->merge_call() there.");
  tutti::OneDeviceStrategy other("CPU:0");
  const tutti::Scope scope = strategy.scope();
  EXPECT_TUTTI_ERROR(other.run([] {}), ErrorCode::kFailedPrecondition,
                     "Strategy::run: mixing different strategies: OneDeviceStrategy(CPU:0) is not "
                     "MirroredStrategy(CPU:0, CPU:1), whose scope or run this thread is in. Leave "
                     "it first.");
}

TEST(Errors, ShowTheValueOfAWrongArgument) {
  tutti::MirroredStrategy strategy(kDevices);
  EXPECT_TUTTI_ERROR(
      tutti::MirroredStrategy({"CPU:0", "CPU:0"}), ErrorCode::kInvalidArgument,
      "MirroredStrategy: device \"/job:localhost/replica:0/task:0/device:CPU:0\" is listed more "
      "than once. List each device once; for more CPU replicas add CPU:1, CPU:2, ...");
  EXPECT_TUTTI_ERROR(tutti::DeviceSpec::parse("GPU:x"), ErrorCode::kInvalidArgument,
                     "DeviceSpec: cannot read \"GPU:x\": \"x\" in \"GPU:x\" is not a non-negative "
                     "integer. Write for example \"CPU:0\", \"/gpu:1\" or "
                     "\"/job:worker/replica:0/task:1/device:CPU:0\".");
  const auto flags = strategy.run([] { return torch::tensor(true); });
  EXPECT_TUTTI_ERROR(strategy.reduce(ReduceOp::kSum, flags), ErrorCode::kInvalidArgument,
                     "Strategy::reduce: values of type bool cannot be reduced by kSum; cast it to "
                     "uint8 or a float first.");
  EXPECT_TUTTI_ERROR(
      tutti::StrategyConfig::from_json(R"({"device": "CPU:0"})"), ErrorCode::kInvalidArgument,
      "make_strategy: unknown key \"device\"; known are strategy, devices, parameter_device, "
      "threads_per_replica, concurrent_replicas, join_timeout, communication_timeout, tls_ca_file, "
      "tls_certificate_file, tls_key_file.");
}

TEST(Errors, SayWhoIsMissingAtADeadline) {
  tutti::MirroredStrategy strategy(kDevices,
                                   {.runner = {.meeting_timeout = std::chrono::milliseconds(50)}});
  std::atomic<bool> failed{false};
  EXPECT_TUTTI_ERROR(
      strategy.run([&] {
        tutti::ReplicaContext* replica = tutti::get_replica_context();
        if (replica->replica_id_in_sync_group() == 1) {
          while (!failed) std::this_thread::yield();
          return;
        }
        try {
          replica->all_reduce(ReduceOp::kSum, 1.0);
        } catch (...) {
          failed = true;
          throw;
        }
      }),
      ErrorCode::kDeadlineExceeded,
      "MirroredStrategy: replica 0 waited 0.05 s in all_reduce(kSum) of float64 scalar; replica 0 "
      "waits in all_reduce, meeting point 1 at errors_test.cc:",
      ", replica 1 is computing (last: no meeting point yet). If the work between two meeting "
      "points may take longer, raise meeting_timeout or CommunicationOptions::timeout.");
}

}  // namespace
