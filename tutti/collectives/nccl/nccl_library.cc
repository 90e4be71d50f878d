// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_library.h"

#include <optional>

#include "tutti/base/env.h"
#include "tutti/base/shared_library.h"

namespace tutti::internal {
namespace {

constexpr char kNcclVariable[] = "TUTTI_NCCL_LIBRARY";

SharedLibrary open_first(std::span<const std::string> paths) {
  std::string reasons;
  if (auto library = SharedLibrary::open_first(paths, &reasons)) return *std::move(library);
  throw Error(
      ErrorCode::kNotFound,
      message("NcclAllReduce: the NCCL library cannot be loaded; tried ", reasons,
              ". Install NCCL 2, or set ", kNcclVariable, " to the path of its shared library."));
}

template <class Function>
void require_function(const SharedLibrary& library, const char* name, Function*& function) {
  function = library.find<Function>(name);
  if (function != nullptr) return;
  throw Error(ErrorCode::kUnimplemented,
              message("NcclAllReduce: the library \"", library.path(), "\" has no function ", name,
                      ". NCCL 2.7 or newer is needed; ", kNcclVariable,
                      " can be set to the path of a different library."));
}

// Holds a table, or the error that explains why there is none.
struct LoadResult {
  NcclFunctions functions;
  std::optional<Error> error;
};

LoadResult try_load() {
  try {
    return {load_nccl(nccl_library_paths()), std::nullopt};
  } catch (const Error& error) {
    return {{}, error};
  }
}

const char* result_name(NcclResult result) {
  switch (result) {
    case NcclResult::kSuccess:
      return "ncclSuccess";
    case NcclResult::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case NcclResult::kSystemError:
      return "ncclSystemError";
    case NcclResult::kInternalError:
      return "ncclInternalError";
    case NcclResult::kInvalidArgument:
      return "ncclInvalidArgument";
    case NcclResult::kInvalidUsage:
      return "ncclInvalidUsage";
    case NcclResult::kRemoteError:
      return "ncclRemoteError";
    case NcclResult::kInProgress:
      return "ncclInProgress";
  }
  return "unknown result";
}

}  // namespace

std::vector<std::string> nccl_library_paths() {
  if (auto path = read_env(kNcclVariable)) return {*path};
  return {"libnccl.so.2", "libnccl.so"};
}

NcclFunctions load_nccl(std::span<const std::string> paths) {
  const SharedLibrary library = open_first(paths);
  NcclFunctions nccl;
  require_function(library, "ncclGetErrorString", nccl.get_error_string);
  require_function(library, "ncclCommInitAll", nccl.comm_init_all);
  require_function(library, "ncclCommDestroy", nccl.comm_destroy);
  require_function(library, "ncclCommAbort", nccl.comm_abort);
  require_function(library, "ncclCommGetAsyncError", nccl.comm_get_async_error);
  require_function(library, "ncclGroupStart", nccl.group_start);
  require_function(library, "ncclGroupEnd", nccl.group_end);
  require_function(library, "ncclSend", nccl.send);
  require_function(library, "ncclRecv", nccl.recv);
  require_function(library, "ncclAllGather", nccl.all_gather);
  nccl.get_last_error = library.find<const char*(NcclCommunicator)>("ncclGetLastError");
  return nccl;
}

const NcclFunctions& nccl_functions() {
  static const LoadResult loaded = try_load();
  if (loaded.error) throw Error(*loaded.error);
  return loaded.functions;
}

ErrorCode error_code_of(NcclResult result) {
  switch (result) {
    case NcclResult::kUnhandledCudaError:
    case NcclResult::kSystemError:
    case NcclResult::kRemoteError:
      return ErrorCode::kUnavailable;
    case NcclResult::kInvalidArgument:
    case NcclResult::kInvalidUsage:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kInternal;
  }
}

void check_nccl(const NcclFunctions& nccl, NcclResult result, const char* function,
                const std::string& where) {
  if (result == NcclResult::kSuccess) return;
  const char* text = nccl.get_error_string(result);
  // The last error is that of the process; NCCL does not use the argument.
  const char* last = nccl.get_last_error == nullptr ? nullptr : nccl.get_last_error(nullptr);
  const bool has_last = last != nullptr && *last != '\0';
  throw Error(error_code_of(result),
              message("NcclAllReduce: ", function, " failed on ", where, ": ",
                      text == nullptr ? "no text" : text, " (", result_name(result), ", ",
                      static_cast<int>(result), ").",
                      has_last ? message(" NCCL's last error: ", last, ".") : std::string(),
                      " Set NCCL_DEBUG=WARN for details from NCCL."));
}

}  // namespace tutti::internal
