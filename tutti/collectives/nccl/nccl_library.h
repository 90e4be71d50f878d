// SPDX-License-Identifier: Apache-2.0
//
// NCCL as a table of functions, filled at run time from the shared library: no NCCL
// or CUDA header, and one build for machines with and without it. The types are
// those of NCCL's C interface, which NCCL keeps stable within version 2.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/error.h"

namespace tutti::internal {

/// ncclResult_t.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// ncclDataType_t. Only bytes are moved, so one value is enough.
enum class NcclDataType : int { kInt8 = 0 };

/// ncclComm_t.
using NcclCommunicator = struct NcclOpaqueCommunicator*;

/// cudaStream_t; null is the default stream of the communicator's device.
using NcclStream = void*;

/// All of NCCL that the library uses. Functions are thread-safe as NCCL's are.
struct NcclFunctions {
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclCommunicator) = nullptr;  // null before NCCL 2.13
  NcclResult (*comm_init_all)(NcclCommunicator*, int count, const int* devices) = nullptr;
  NcclResult (*comm_destroy)(NcclCommunicator) = nullptr;
  NcclResult (*comm_abort)(NcclCommunicator) = nullptr;
  NcclResult (*comm_get_async_error)(NcclCommunicator, NcclResult*) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*send)(const void*, size_t count, NcclDataType, int peer, NcclCommunicator,
                     NcclStream) = nullptr;
  NcclResult (*recv)(void*, size_t count, NcclDataType, int peer, NcclCommunicator,
                     NcclStream) = nullptr;
  NcclResult (*all_gather)(const void*, void*, size_t count, NcclDataType, NcclCommunicator,
                           NcclStream) = nullptr;
};

/// The paths where the library is searched, in order: only TUTTI_NCCL_LIBRARY if it is set.
std::vector<std::string> nccl_library_paths();

/// Returns the functions of the first library that can be loaded; it stays loaded. Throws
/// kNotFound with all paths if there is none, kUnimplemented if it lacks a function.
NcclFunctions load_nccl(std::span<const std::string> paths);

/// load_nccl(nccl_library_paths()), once for the process: later calls return the same
/// table or throw the same error. Thread-safe.
const NcclFunctions& nccl_functions();

/// The code that tells a program what it can do about a result of NCCL.
ErrorCode error_code_of(NcclResult result);

/// Throws an Error unless the result is a success. The message has the function,
/// `where` ("replica 1 (cuda:1)") and what NCCL says.
void check_nccl(const NcclFunctions& nccl, NcclResult result, const char* function,
                const std::string& where);

}  // namespace tutti::internal
