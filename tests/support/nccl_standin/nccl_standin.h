// SPDX-License-Identifier: Apache-2.0
//
// What a test can request from the stand-in for NCCL, a shared library with NCCL's C functions that
// moves bytes between threads in host memory. Unlike NCCL it is synchronous: ncclGroupEnd returns
// when the data has arrived. Wrong usage is an error and is kept in violations().

#pragma once

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace tutti::test::nccl_standin {

struct Call {
  std::string function;
  int rank = -1;  ///< -1 for functions without a communicator.
  int peer = -1;
  size_t bytes = 0;
  const void* stream = nullptr;
  int device = -1;  ///< The communicator's device.
  std::thread::id thread = std::this_thread::get_id();
};

/// All calls in the order they were made, except for ncclGetErrorString, ncclGetLastError and
/// ncclCommGetAsyncError.
std::vector<Call> calls();
void forget_calls();

/// Describes what NCCL would not have allowed; empty in a correct program.
std::vector<std::string> violations();

/// Makes the k-th call of a function from now on (1: the next) on a rank return `result`. Rank -1
/// is for functions without a communicator.
void fail_call(const std::string& function, int rank, int k, int result);

/// The next communicator of this rank that is queried for its asynchronous error returns it.
void set_async_error(int rank, int result);

/// The next group of calls on this rank does not return before its communicator is aborted.
void hang_group(int rank);

/// Communicators that exist: neither destroyed nor aborted.
int live_communicators();

}  // namespace tutti::test::nccl_standin
