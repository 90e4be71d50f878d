// SPDX-License-Identifier: Apache-2.0
//
// The communicators of one list of devices. Replica r of an all-reduce is rank r and
// owns device r. Nothing here waits for a device; the caller does, and aborts the
// group when something fails. An aborted group cannot be used any more.

#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "tutti/base/mutex.h"
#include "tutti/base/wait_word.h"
#include "tutti/collectives/nccl/nccl_library.h"

namespace tutti::internal {

/// "replica 1 (cuda:1)"
std::string describe_replica(size_t replica, c10::Device device);

/// Ranks may be used from one thread each, or all from one thread. abort() may be
/// called from any thread.
class NcclGroup {
 public:
  /// Blocks until NCCL has made the communicators. `nccl` must outlive the group.
  NcclGroup(const NcclFunctions& nccl, std::vector<c10::Device> devices);

  /// Destroys the communicators that are not aborted. All calls must have ended.
  ~NcclGroup();

  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  size_t size() const { return devices_.size(); }
  c10::Device device(size_t rank) const { return devices_[rank]; }

  /// Calls that ranks [first, last) make together, between group start and group end. They go to
  /// the default stream of each rank's device. Failures throw (check_nccl), and so does beginning
  /// after abort() (kCancelled). Used by one thread.
  class Calls {
   public:
    Calls(NcclGroup& group, size_t first, size_t last);
    ~Calls();
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

    void send(size_t rank, const void* data, size_t bytes, size_t peer);
    void receive(size_t rank, void* data, size_t bytes, size_t peer);
    void all_gather(size_t rank, const void* data, void* all, size_t bytes);

    /// Lets NCCL begin. If it is not called, as when a call has thrown, the calls are dropped.
    void submit();

   private:
    void check(NcclResult result, const char* function, size_t rank) const;
    void check(NcclResult result, const char* function) const;

    NcclGroup& group_;
    size_t first_;
    size_t last_;
    bool open_ = false;
  };

  /// Throws the error that NCCL has detected on this rank since the calls were made.
  void check_async_error(size_t rank);

  /// Aborts all communicators, which also ends what is running on the devices. A rank
  /// that is inside a call gets `grace` to leave it; after that the abort frees it.
  /// Further calls do nothing.
  void abort(std::chrono::milliseconds grace);

 private:
  void enter(size_t first, size_t last);
  void leave(size_t first, size_t last);
  void check_open(size_t rank);
  [[noreturn]] void throw_aborted(size_t rank) const;
  std::vector<size_t> take_idle(bool also_busy);

  const NcclFunctions& nccl_;
  std::vector<c10::Device> devices_;
  std::vector<NcclCommunicator> communicators_;

  enum class RankState { kIdle, kInCall, kAborted };
  Mutex mutex_;
  bool aborting_ TUTTI_GUARDED_BY(mutex_) = false;
  std::vector<RankState> states_ TUTTI_GUARDED_BY(mutex_);
  WaitWord left_;  // bumped when a rank leaves a call
};

}  // namespace tutti::internal
