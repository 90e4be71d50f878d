// SPDX-License-Identifier: Apache-2.0
//
// What NcclAllReduce does when NCCL, a device or a replica fails: no thread is left waiting, the
// error says what failed where, and the next call works.

#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/collectives/nccl/nccl_all_reduce.h"

#include "tests/support/expect_error.h"
#include "tests/support/nccl_fixture.h"

namespace tutti {
namespace {

using namespace test;
using std::chrono::milliseconds;

// A distant deadline: a test that runs into it fails.
constexpr CommunicationOptions kPatient = {.timeout = std::chrono::seconds(15)};

struct Failure {
  ErrorCode code;
  std::string text;
};

std::vector<Failure> failures_of(const std::vector<std::exception_ptr>& thrown) {
  std::vector<Failure> result;
  for (const std::exception_ptr& each : thrown) {
    try {
      if (each != nullptr) std::rethrow_exception(each);
    } catch (const Error& error) {
      result.push_back({error.code(), error.what()});
    }
  }
  return result;
}

// The sum of ones is right again, with one thread and with several.
void expect_usable(NcclAllReduce& ops, size_t replicas = 3) {
  for (const bool threads : {true, false}) {
    TensorGrid tensors(replicas);
    for (auto& row : tensors) row = {at::ones({10}), at::ones({3})};
    all_reduce_as(threads, ops, ReduceOp::kSum, tensors, tensors, kPatient);
    for (const auto& row : tensors) {
      EXPECT_TRUE(bit_equal(row[0], at::full({10}, static_cast<float>(replicas))));
    }
  }
  EXPECT_EQ(nccl_standin::live_communicators(), static_cast<int>(replicas));
  expect_no_violations();
}

void expect_text(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\n  lacks \"" << part << "\"";
}

TEST(NcclFailure, AFailingCallOfOneReplicaReleasesAllAndTheNextCallWorks) {
  NcclAllReduce ops(2, standin_seams());
  struct Fault {
    const char* function;
    int k;
    int result;
    ErrorCode code;
  };
  for (const Fault& fault : {Fault{"ncclSend", 1, 1, ErrorCode::kUnavailable},
                             Fault{"ncclSend", 5, 2, ErrorCode::kUnavailable},
                             Fault{"ncclRecv", 2, 3, ErrorCode::kInternal},
                             Fault{"ncclAllGather", 1, 4, ErrorCode::kInvalidArgument},
                             Fault{"ncclAllGather", 2, 6, ErrorCode::kUnavailable}}) {
    SCOPED_TRACE(message(fault.function, " number ", fault.k));
    TensorGrid tensors = random_grid(3, {10, 3}, at::kFloat);
    nccl_standin::fail_call(fault.function, 1, fault.k, fault.result);
    const auto failures =
        failures_of(all_reduce_by_threads(ops, ReduceOp::kSum, tensors, tensors, kPatient));
    ASSERT_EQ(failures.size(), 3u);
    for (const Failure& failure : failures) {
      EXPECT_EQ(failure.code, fault.code);
      expect_text(failure.text,
                  message("NcclAllReduce: ", fault.function, " failed on replica 1 (cuda:1): "));
      expect_text(failure.text, "NCCL's last error: a word from the stand-in.");
    }
    EXPECT_EQ(nccl_standin::live_communicators(), 0) << "aborted";
    expect_usable(ops);
  }
  EXPECT_EQ(count_calls("ncclCommAbort"), 15);
  EXPECT_EQ(count_calls("ncclCommInitAll"), 6);
}

TEST(NcclFailure, AFailingCallOfTheOneThreadIsAnErrorAndTheNextCallWorks) {
  NcclAllReduce ops(2, standin_seams());
  for (const char* function : {"ncclSend", "ncclRecv", "ncclAllGather"}) {
    TensorGrid tensors = random_grid(3, {10, 3}, at::kFloat);
    nccl_standin::fail_call(function, 2, 2, 5);
    EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, tensors, tensors, kPatient),
                       ErrorCode::kInvalidArgument, function,
                       "failed on replica 2 (cuda:2): invalid usage (ncclInvalidUsage, 5)");
    EXPECT_EQ(nccl_standin::live_communicators(), 0);
    expect_usable(ops);
  }
}

TEST(NcclFailure, GroupsAndCommunicatorsMayFail) {
  NcclAllReduce ops(1, standin_seams());
  TensorGrid tensors = random_grid(3, {10}, at::kFloat);
  nccl_standin::fail_call("ncclCommInitAll", -1, 1, 2);
  EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, tensors, tensors, kPatient),
                     ErrorCode::kUnavailable,
                     "ncclCommInitAll failed on the devices cuda:0, cuda:1, cuda:2");
  nccl_standin::fail_call("ncclCommInitAll", -1, 1, 2);
  const auto failures =
      failures_of(all_reduce_by_threads(ops, ReduceOp::kSum, tensors, tensors, kPatient));
  ASSERT_EQ(failures.size(), 3u);
  for (const Failure& failure : failures) EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  expect_usable(ops);
  for (const char* function : {"ncclGroupStart", "ncclGroupEnd"}) {
    for (const int k : {1, 2}) {
      nccl_standin::fail_call(function, -1, k, 3);
      EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, tensors, tensors, kPatient),
                         ErrorCode::kInternal, function,
                         "failed on replicas 0 to 2 (cuda:0, cuda:1, cuda:2)");
      expect_usable(ops);
      nccl_standin::fail_call(function, -1, k, 3);
      EXPECT_TUTTI_ERROR(
          all_reduce_as(/*threads=*/true, ops, ReduceOp::kSum, tensors, tensors, kPatient),
          ErrorCode::kInternal, function, "failed on replica ");
      expect_usable(ops);
    }
  }
}

TEST(NcclFailure, AnErrorThatNcclMeetsLaterIsSeenWhileWaiting) {
  FakeGpus& gpus = FakeGpus::install();
  NcclAllReduce ops(1, standin_seams());
  TensorGrid tensors = random_grid(3, {10}, at::kFloat);
  for (const bool threads : {false, true}) {
    for (c10::DeviceIndex device = 0; device < 3; ++device) gpus.set_stuck(device, true);
    nccl_standin::set_async_error(2, 6);
    EXPECT_TUTTI_ERROR(all_reduce_as(threads, ops, ReduceOp::kSum, tensors, tensors, kPatient),
                       ErrorCode::kUnavailable, "an operation failed on replica 2 (cuda:2)",
                       "ncclRemoteError, 6");
    EXPECT_EQ(nccl_standin::live_communicators(), 0);
    for (c10::DeviceIndex device = 0; device < 3; ++device) gpus.set_stuck(device, false);
    expect_usable(ops);
  }
  nccl_standin::set_async_error(1, 7);  // "in progress" is not an error
  expect_usable(ops);
}

TEST(NcclFailure, ADeviceThatNeverFinishesRunsIntoTheDeadline) {
  FakeGpus& gpus = FakeGpus::install();
  internal::NcclSeams seams = standin_seams();
  seams.abort_grace = std::chrono::seconds(10);  // even a slow thread reports what it waits for
  NcclAllReduce ops(3, seams);
  TensorGrid tensors = random_grid(3, {10}, at::kFloat);
  gpus.set_stuck(1, true);
  const CommunicationOptions options = {.timeout = milliseconds(100)};
  EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, tensors, tensors, options),
                     ErrorCode::kDeadlineExceeded,
                     "replica 1 (cuda:1) has not finished pack 1 of 3 (12 bytes) within 100 ms",
                     "CommunicationOptions::timeout");
  EXPECT_EQ(nccl_standin::live_communicators(), 0) << "aborted";
  gpus.set_stuck(1, false);
  expect_usable(ops);

  for (c10::DeviceIndex device = 0; device < 3; ++device) gpus.set_stuck(device, true);
  const auto failures =
      failures_of(all_reduce_by_threads(ops, ReduceOp::kSum, tensors, tensors, options));
  ASSERT_EQ(failures.size(), 3u);
  for (const Failure& failure : failures) {
    EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
    expect_text(failure.text, "has not finished pack 1 of 3 (12 bytes) within 100 ms");
  }
  for (c10::DeviceIndex device = 0; device < 3; ++device) gpus.set_stuck(device, false);
  expect_usable(ops);
}

TEST(NcclFailure, CallsThatDoNotReturnRunIntoTheDeadline) {
  NcclAllReduce ops(1, standin_seams());
  TensorGrid tensors = random_grid(3, {10}, at::kFloat);
  const CommunicationOptions options = {.timeout = milliseconds(300)};
  const std::string text = "a call into NCCL or LibTorch has not returned within 300 ms";
  nccl_standin::hang_group(1);
  EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, tensors, tensors, options),
                     ErrorCode::kDeadlineExceeded, text);
  expect_usable(ops);
  nccl_standin::hang_group(1);
  const auto failures =
      failures_of(all_reduce_by_threads(ops, ReduceOp::kSum, tensors, tensors, options));
  ASSERT_EQ(failures.size(), 3u);
  for (const Failure& failure : failures) {
    EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
    expect_text(failure.text, text);
  }
  expect_usable(ops);
}

TEST(NcclFailure, AMemberThatDoesNotComeIsNotWaitedForForEver) {
  NcclAllReduce ops(1, standin_seams());
  TensorGrid tensors = random_grid(2, {10}, at::kFloat);
  // One after the other on this thread, the last member first.
  const CommunicationOptions options = {.timeout = milliseconds(50)};
  EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, tensors, tensors, options, {.members = 2}),
                     ErrorCode::kDeadlineExceeded,
                     "replica 1 (cuda:1) has waited for 50 ms for the threads of the other");
  // The other member arrives when the first has gone.
  std::vector<at::Tensor*> like = {&tensors[0][0]};
  std::vector<std::atomic<int64_t>> counters(2);
  const auto tensor_of = [&](size_t r, size_t t) -> at::Tensor& { return tensors[r][t]; };
  const auto memory = [&](size_t r, size_t t) {
    return AllReduceBatch::Memory{tensors[r][t].data_ptr(), tensors[r][t].data_ptr()};
  };
  const auto claims = [&](size_t m) -> std::atomic<int64_t>& { return counters[m]; };
  const auto member = [&](size_t me) {
    ops.all_reduce(
        AllReduceBatch(ReduceOp::kSum, 2, like, tensor_of, tensor_of, memory, {me, 2, claims}),
        options);
  };
  EXPECT_TUTTI_ERROR(member(1), ErrorCode::kDeadlineExceeded, "has waited for 50 ms");
  EXPECT_TUTTI_ERROR(member(0), ErrorCode::kCancelled, "another replica has given up");
  EXPECT_TRUE(nccl_standin::calls().empty());
  expect_usable(ops, 2);
}

TEST(NcclFailure, AnErrorOfLibTorchReleasesTheOthers) {
  NcclAllReduce ops(1, standin_seams());
  TensorGrid inputs = random_grid(3, {10}, at::kFloat);
  TensorGrid outputs = empty_like(inputs);
  outputs[1][0] = at::empty({4});  // too small: the copy into it throws
  const auto errors = all_reduce_by_threads(ops, ReduceOp::kSum, inputs, outputs, kPatient);
  ASSERT_NE(errors[1], nullptr);
  EXPECT_THROW(std::rethrow_exception(errors[1]), c10::Error);
  EXPECT_EQ(nccl_standin::live_communicators(), 0);
  expect_usable(ops);
}

}  // namespace
}  // namespace tutti
