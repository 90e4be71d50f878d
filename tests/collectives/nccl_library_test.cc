// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_library.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti::internal {
namespace {

using Paths = std::vector<std::string>;

TEST(NcclLibrary, NamesAllPathsThatItTried) {
  EXPECT_TUTTI_ERROR(load_nccl(Paths{"/no/such/a.so", "libno_such_b.so"}), ErrorCode::kNotFound,
                     "NcclAllReduce: the NCCL library cannot be loaded; tried \"/no/such/a.so\" (",
                     "; \"libno_such_b.so\" (", "set TUTTI_NCCL_LIBRARY to the path");
}

TEST(NcclLibrary, NamesAMissingFunction) {
  // The first library that can be loaded counts, here that of mathematics.
  EXPECT_TUTTI_ERROR(load_nccl(Paths{"/no/such/a.so", "libm.so.6"}), ErrorCode::kUnimplemented,
                     "the library \"libm.so.6\" has no function ncclGetErrorString",
                     "NCCL 2.7 or newer is needed");
}

const char* error_string(NcclResult result) {
  return result == NcclResult::kSystemError ? "the system is down" : "something else";
}
const char* last_error(NcclCommunicator) { return "cable 7 is loose"; }
const char* no_last_error(NcclCommunicator) { return ""; }

TEST(NcclLibrary, GivesEveryResultACode) {
  EXPECT_EQ(error_code_of(NcclResult::kUnhandledCudaError), ErrorCode::kUnavailable);
  EXPECT_EQ(error_code_of(NcclResult::kSystemError), ErrorCode::kUnavailable);
  EXPECT_EQ(error_code_of(NcclResult::kRemoteError), ErrorCode::kUnavailable);
  EXPECT_EQ(error_code_of(NcclResult::kInvalidArgument), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code_of(NcclResult::kInvalidUsage), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_code_of(NcclResult::kInternalError), ErrorCode::kInternal);
  EXPECT_EQ(error_code_of(NcclResult::kInProgress), ErrorCode::kInternal);
  EXPECT_EQ(error_code_of(static_cast<NcclResult>(99)), ErrorCode::kInternal);
}

TEST(NcclLibrary, ReportsWhatNcclSays) {
  NcclFunctions nccl;
  nccl.get_error_string = error_string;
  EXPECT_NO_THROW(check_nccl(nccl, NcclResult::kSuccess, "ncclSend", "replica 1"));
  const std::string text =
      "NcclAllReduce: ncclSend failed on replica 1 (cuda:1): the system is down "
      "(ncclSystemError, 2).";
  const auto check = [&] {
    check_nccl(nccl, NcclResult::kSystemError, "ncclSend", "replica 1 (cuda:1)");
  };
  EXPECT_TUTTI_ERROR(check(), ErrorCode::kUnavailable, text + " Set NCCL_DEBUG=WARN");
  nccl.get_last_error = no_last_error;
  EXPECT_TUTTI_ERROR(check(), ErrorCode::kUnavailable, text + " Set NCCL_DEBUG=WARN");
  nccl.get_last_error = last_error;
  EXPECT_TUTTI_ERROR(check(), ErrorCode::kUnavailable,
                     text + " NCCL's last error: cable 7 is loose. Set NCCL_DEBUG=WARN");
  EXPECT_TUTTI_ERROR(check_nccl(nccl, static_cast<NcclResult>(42), "ncclRecv", "replica 0"),
                     ErrorCode::kInternal, "something else (unknown result, 42)");
}

}  // namespace
}  // namespace tutti::internal
