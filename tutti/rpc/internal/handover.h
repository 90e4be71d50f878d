// SPDX-License-Identifier: Apache-2.0
//
// An operation that we start on one thread is completed by gRPC on another. gRPC orders the two,
// but ThreadSanitizer cannot see how, since gRPC is not instrumented; these calls tell it.

#pragma once

#if defined(__SANITIZE_THREAD__)
#define TUTTI_RPC_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TUTTI_RPC_TSAN 1
#endif
#endif

#ifdef TUTTI_RPC_TSAN
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace tutti::rpc::internal {

/// Called before an object is given to gRPC: everything done so far happens before its take_over().
inline void hand_over([[maybe_unused]] void* object) {
#ifdef TUTTI_RPC_TSAN
  __tsan_release(object);
#endif
}

/// Called first in every function that gRPC calls.
inline void take_over([[maybe_unused]] void* object) {
#ifdef TUTTI_RPC_TSAN
  __tsan_acquire(object);
#endif
}

/// While it lives, ThreadSanitizer ignores this thread's writes: for objects that belong to gRPC
/// from the start.
class UnseenWrites {
 public:
  UnseenWrites() {  // NOLINT(modernize-use-equals-default): not with ThreadSanitizer
#ifdef TUTTI_RPC_TSAN
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~UnseenWrites() {  // NOLINT(modernize-use-equals-default)
#ifdef TUTTI_RPC_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
#endif
  }
  UnseenWrites(const UnseenWrites&) = delete;
  UnseenWrites& operator=(const UnseenWrites&) = delete;
};

}  // namespace tutti::rpc::internal
