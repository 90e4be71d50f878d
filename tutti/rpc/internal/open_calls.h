// SPDX-License-Identifier: Apache-2.0
//
// The calls and streams in flight on one channel, so that all of them can be cancelled together.

#pragma once

#include <memory>
#include <unordered_set>
#include <utility>

#include <grpcpp/client_context.h>

#include "tutti/base/mutex.h"

namespace tutti::rpc::internal {

/// Thread-safe.
class OpenCalls {
 public:
  using Context = std::shared_ptr<grpc::ClientContext>;

  void add(const Context& context) {
    {
      MutexLock lock(mutex_);
      if (!aborted_) {
        contexts_.insert(context);
        return;
      }
    }
    context->TryCancel();
  }
  void remove(const Context& context) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
  }
  /// Cancels all calls, including those added later.
  void abort() {
    std::unordered_set<Context> open;
    {
      MutexLock lock(mutex_);
      aborted_ = true;
      open.swap(contexts_);
    }
    for (const Context& context : open) context->TryCancel();
  }

 private:
  Mutex mutex_;
  std::unordered_set<Context> contexts_ TUTTI_GUARDED_BY(mutex_);
  bool aborted_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::rpc::internal
