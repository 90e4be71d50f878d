// SPDX-License-Identifier: Apache-2.0
//
// Sums gradients over the replicas of all workers, bucket by bucket, in the order of the buckets.
// On one machine the threads of the replicas do it themselves, inside hooks and in finish(); if a
// worker is on another machine, a dedicated thread does, so that network latency overlaps backward.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/base/wait_word.h"
#include "tutti/collectives/gradient_reducer.h"
#include "tutti/collectives/worker_all_reduce.h"
#include "tutti/group/worker_group.h"

namespace tutti::internal {

/// See GradientReducer. All workers make their reducers in the same order, with equal buckets: the
/// constructor compares layouts, and throws kFailedPrecondition with both if they differ. Threads:
/// as GradientReducer.
class WorkerGradientReducer final : public GradientReducer {
 public:
  /// Which buckets are summed in copies in host memory, made in finish(): those on devices other
  /// than the CPU, or all.
  enum class Copies : uint8_t { kOfOtherDevices, kAlways };

  WorkerGradientReducer(std::shared_ptr<WorkerGroup> group, const WorkerTree& tree,
                        std::vector<GradientBucket> buckets,
                        std::optional<std::chrono::milliseconds> timeout,
                        Copies copies = Copies::kOfOtherDevices);
  ~WorkerGradientReducer() override;

  void ready(size_t replica, size_t bucket, void* place) override;
  void help(size_t replica) override;
  [[nodiscard]] bool finish(size_t replica, ChunkFn reduced) override;
  bool reset() override;

 private:
  struct alignas(64) Bucket {
    std::atomic<size_t> filled{0};  // by how many replicas
    std::string name;
    std::vector<at::Tensor>
        scratch;                   // nodes that do not fit into the bucket: those of 16-bit floats
    std::vector<at::Tensor> host;  // copies of the replicas' memory, if that is on other devices
  };

  const at::Tensor& memory(size_t bucket, size_t replica) const;
  void copy_to_host(size_t replica);
  void copy_from_host(size_t replica);
  void check_layout();
  // The timeout of an exchange begins when the replicas of this worker wait for it.
  enum class Progress : uint8_t { kWithoutWaiting, kWhileBackwardRuns, kToEnd };
  bool progress(Progress how) TUTTI_REQUIRES(driver_);
  void start_bucket(size_t bucket) TUTTI_REQUIRES(driver_);
  void check_size(int rank, size_t bytes, size_t limit) const;
  void clear() TUTTI_REQUIRES(driver_);
  void wait_until(const std::function<bool()>& over, const Deadline& deadline, const char* what);
  void thread_body();
  void fail(std::exception_ptr error);
  bool may_begin_early() const;

  const std::shared_ptr<WorkerGroup> group_;
  const WorkerTree& tree_;
  const std::optional<std::chrono::milliseconds> timeout_;
  const size_t replicas_;
  std::vector<Bucket> states_;

  // The thread that holds the mutex advances the exchange.
  Mutex driver_;
  size_t next_ TUTTI_GUARDED_BY(driver_) = 0;  // the bucket under way
  std::unique_ptr<Transfer> transfer_ TUTTI_GUARDED_BY(driver_);

  std::atomic<size_t> arrived_{0};    // replicas in finish()
  std::atomic<bool> failing_{false};  // a thread writes error_
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written before failed_
  WaitWord news_;             // buckets that became ready, the end of a step
  std::atomic<uint64_t> steps_done_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> resetting_{false};
  std::atomic<bool> under_way_{false};  // whether there is a transfer
  std::unique_ptr<Thread> thread_;      // last: it uses all the above
};

}  // namespace tutti::internal
