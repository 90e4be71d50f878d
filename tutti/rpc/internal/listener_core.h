// SPDX-License-Identifier: Apache-2.0
//
// The state that a Listener shares with its pending calls, which keep it alive.

#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "tutti/base/mutex.h"
#include "tutti/rpc/internal/handler_pool.h"
#include "tutti/rpc/internal/limited_log.h"
#include "tutti/rpc/listener.h"

namespace tutti::rpc::internal {

/// gRPC addresses methods by path.
inline constexpr std::string_view kMethodPrefix = "/tutti/";
/// The name of the header with call_token().
inline constexpr const char* kTokenHeader = "tutti-token";

/// Thread-safe.
struct ListenerCore {
  struct Handlers {
    std::shared_ptr<const DeferredHandler> call = nullptr;
    std::shared_ptr<const StreamHandler> stream = nullptr;
  };

  explicit ListenerCore(const ListenerOptions& options)
      : max_call_bytes(options.max_call_bytes),
        pool(static_cast<size_t>(options.handler_threads)) {}

  const size_t max_call_bytes;
  std::string address;
  std::string call_secret;  ///< if not empty, every call must carry its token
  HandlerPool pool;
  LimitedLog log;

  Mutex mutex;
  std::map<std::string, Handlers> handlers TUTTI_GUARDED_BY(mutex);
  std::unordered_map<Reply::Slot*, std::weak_ptr<Reply::Slot>> waiting TUTTI_GUARDED_BY(mutex);
  bool stopped TUTTI_GUARDED_BY(mutex) = false;
  std::string last_refusal TUTTI_GUARDED_BY(mutex);

  void note_refusal(const std::string& text) {
    MutexLock lock(mutex);
    last_refusal = text;
  }
};

}  // namespace tutti::rpc::internal
