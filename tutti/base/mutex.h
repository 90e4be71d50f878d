// SPDX-License-Identifier: Apache-2.0
//
// A mutex that Clang's thread-safety analysis understands, and the annotations.
// Waiting for other replicas goes through WaitWord, which takes a deadline.

#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TUTTI_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TUTTI_THREAD_ANNOTATION(x)
#endif

#define TUTTI_CAPABILITY(x) TUTTI_THREAD_ANNOTATION(capability(x))
#define TUTTI_SCOPED_CAPABILITY TUTTI_THREAD_ANNOTATION(scoped_lockable)
#define TUTTI_GUARDED_BY(x) TUTTI_THREAD_ANNOTATION(guarded_by(x))
#define TUTTI_REQUIRES(...) TUTTI_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TUTTI_ACQUIRE(...) TUTTI_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TUTTI_RELEASE(...) TUTTI_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TUTTI_RETURN_CAPABILITY(x) TUTTI_THREAD_ANNOTATION(lock_returned(x))
#define TUTTI_TRY_ACQUIRE(...) TUTTI_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

namespace tutti {

/// Thread-safe. Not recursive.
class TUTTI_CAPABILITY("mutex") Mutex {
 public:
  void lock() TUTTI_ACQUIRE() { mutex_.lock(); }
  void unlock() TUTTI_RELEASE() { mutex_.unlock(); }
  bool try_lock() TUTTI_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for the lifetime of the object. An object belongs to the thread that makes it.
class TUTTI_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TUTTI_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() TUTTI_RELEASE() { mutex_.unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits for a change of what a Mutex guards. As always, check the condition in a loop. Use it only
/// between a thread and its owner, because a wait has no deadline. Thread-safe.
class CondVar {
 public:
  void wait(Mutex& mutex) TUTTI_REQUIRES(mutex) { condition_.wait(mutex); }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace tutti
